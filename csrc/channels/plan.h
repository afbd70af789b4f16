/* SPDX-License-Identifier: MIT */
/* From tensors to work lists: cuts a shuffle over several tensors into runs and single channels. */
#ifndef OSW_CHANNELS_PLAN_H
#define OSW_CHANNELS_PLAN_H

#include "channels/channels.h"

#include <stdbool.h>
#include <stddef.h>

/* One tensor as the shuffle sees it: `channels` channels, channel c of image n and pixel p at
 * base + c * channel_step + n * image_step + p * pixel_step (bytes). base is NULL for an output
 * that is not wanted. */
typedef struct osw_segment {
    char *base;
    int64_t channels;
    int64_t channel_step;
    int64_t image_step;
    int64_t pixel_step;
} osw_segment;

/* Segments side by side. */
typedef struct osw_side {
    const osw_segment *segments;
    int64_t count;
} osw_side;

typedef struct osw_shuffle {
    osw_side inputs;
    osw_side outputs;
    int64_t groups;        /* divides channels */
    int64_t channels;      /* of all inputs, and of all outputs */
    int64_t element_bytes; /* 1, 2, 4, 8 or 16 */
} osw_shuffle;

/* Work list over the pixels of `images` images of `pixels` pixels each; or, if plane_bytes > 0,
 * over whole planes: then only moves are used, a plane each. */
typedef struct osw_plan {
    osw_run *runs;
    int64_t run_count;
    osw_move *moves;
    int64_t move_count;
    osw_run_fn *transpose;
    osw_move_fn *move;
    osw_planes_fn *copy; /* of planes */
    int transpose_id;    /* index in the list of variants */
    int move_id;
    int64_t images;
    int64_t pixels;
    int64_t pixel_bytes;
    int64_t plane_bytes;
} osw_plan;

/* Bytes of scratch memory that the plan of this shuffle needs at most; aligned as malloc aligns. */
size_t osw_plan_bytes(const osw_shuffle *shuffle);

/* Lists for channels that are neighbours in memory (channel_step is the element). images and pixels
 * are set, too: images whose pixels follow each other at one distance in every segment are joined.
 */
void osw_plan_pixels(osw_plan *plan, const osw_shuffle *shuffle, int64_t images, int64_t pixels,
                     void *scratch);

/* Lists for channels whose planes are dense, plane_bytes each. */
void osw_plan_planes(osw_plan *plan, const osw_shuffle *shuffle, int64_t images,
                     int64_t plane_bytes, void *scratch);

/* From planes to pixels (interleave) or back: the channels of `planes`, each of which has its
 * `pixels` pixels one after another, and those of `wide`, which has whole pixels one after another.
 * streams: as many as channels. */
void osw_plan_format(osw_plan *plan, osw_run *run, osw_stream *streams, const osw_segment *planes,
                     const osw_segment *wide, int64_t images, int64_t pixels, int64_t element_bytes,
                     bool interleave);

/* Do the work on torch's threads. */
void osw_plan_execute(const osw_plan *plan);

#endif
