/* SPDX-License-Identifier: MIT */
#include "chain/folded.h"
#include "chain/run.h"
#include "driver_contract.h"

#include <stdlib.h>

#define BREACHES(X)                                                                                \
    X(NOTHING)                                                                                     \
    X(COUNT)                                                                                       \
    X(BATCH) X(FEW_CHANNELS) X(MANY_CHANNELS) X(ACTIVATION) X(SIDE) X(STRIDE) X(OUT_HEIGHT)        \
        X(BEHIND_EACH_OTHER) X(DENSE) X(FOLDED_COUNT) X(FOLDED_WINDOW) X(FOLDED_PADDING)
enum { BREACHES(DRIVER_BREACH_ID) };
enum { WIDTH = 16, HEIGHT = 5, VALUES = HEIGHT * HEIGHT * WIDTH };

static float x[VALUES], z[2][VALUES], y[VALUES], weights[2][WIDTH * WIDTH];
static double statistics[2][2][WIDTH];

/* 1 x 1, and depthwise behind it. */
static osw_chain make_chain(int breach)
{
    static const float *const inputs[] = {x, z[0]};
    osw_chain chain = {.count = breach == COUNT ? OSW_CHAIN_MOST_STAGES + 1 : 2};
    for (int i = 0; i < 2; i++) {
        const int64_t side = i == 0           ? 1
                             : breach == SIDE ? 4
                                              : 3,
                      stride = 1 + 2 * (breach == STRIDE);
        const int64_t channels = breach == FEW_CHANNELS    ? 8
                                 : breach == MANY_CHANNELS ? 1025
                                                           : WIDTH;
        const int64_t out = (HEIGHT - 1) / stride + 1;
        chain.stages[i] = (osw_chain_stage){
            .depthwise = i == 1,
            .dense = breach == DENSE && i == 0,
            .batch = breach == BATCH ? 0 : 1,
            .height = HEIGHT,
            .width = HEIGHT,
            .channels = channels,
            .out_height = out + (breach == OUT_HEIGHT && i == 1),
            .out_width = out,
            .outputs = channels + 16 * (breach == BEHIND_EACH_OTHER && i == 0),
            .side = side,
            .stride = i == 1 ? stride : 1,
            .window = {side, side, 1, 1, side / 2, side / 2},
            .weight = weights[i],
            .input = inputs[i],
            .output = z[i],
            .normal = y,
        };
        chain.links[i] = (osw_chain_link){
            .eps = 1e-5,
            .mean = statistics[i][0],
            .var = statistics[i][1],
            .norm.activation.kind = breach == ACTIVATION && i == 1 ? OSW_SIGMOID : OSW_RELU,
        };
    }
    return chain;
}

static void train(int breach)
{
    static uint64_t calls[OSW_CHAIN_COUNT];
    osw_chain chain = make_chain(breach);
    void *const memory = malloc(osw_chain_prepare(&chain));
    osw_chain_choose(&chain, false, calls);
    osw_chain_forward(&chain, memory);
    free(memory);
}

static void evaluate(int breach)
{
    static uint64_t calls[OSW_CHAIN_COUNT];
    osw_chain chain = make_chain(NOTHING);
    chain.stages[1].window.height += breach == FOLDED_WINDOW;
    if (breach == FOLDED_PADDING) {
        chain.stages[0].dense = true;
        chain.stages[0].window.top = 1;
        chain.stages[0].out_height += 2;
        chain.stages[1].height = chain.stages[1].out_height = HEIGHT + 2;
    }
    osw_chain_choose_folded(&chain, true, calls);
    float *const folded = malloc((size_t)osw_chain_folded_floats(&chain) * sizeof(float));
    float *const room = malloc((size_t)osw_chain_fold_room(&chain) * sizeof(float));
    osw_chain_fold(&chain, 1, folded, room);
    chain.count *= breach != FOLDED_COUNT;
    osw_chain_folded_forward(&chain, folded);
    free(folded);
    free(room);
}

static void call(int breach)
{
    train(breach);
    evaluate(breach);
}

DRIVER_CONTRACT(chain);
