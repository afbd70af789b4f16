/* SPDX-License-Identifier: MIT */
/* Whole shuffles of several tensors, cut by channels/plan.c, against one channel after the other.
 */
#include "channels/plan.h"
#include "driver.h"
#include "driver_rooms.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_SEGMENTS = 5, MOST_GAP = 3 };

static const driver_type types[OSW_WIDTH_COUNT] = {DRIVER_U8, DRIVER_U16, DRIVER_U32, DRIVER_U64,
                                                   DRIVER_U128};

typedef struct whole {
    osw_segment inputs[MOST_SEGMENTS], outputs[MOST_SEGMENTS];
    osw_shuffle shuffle;
    int64_t images, pixels;
    bool planes;
} whole;

static char *channel_at(osw_side side, int64_t channel, int64_t image, int64_t pixel)
{
    const osw_segment *s = side.segments;
    for (; channel >= s->channels; s++)
        channel -= s->channels;
    return s->base
               ? s->base + channel * s->channel_step + image * s->image_step + pixel * s->pixel_step
               : NULL;
}

/* Output j * groups + i is input i * (channels / groups) + j. */
static void shuffle_plainly(const whole *w)
{
    const osw_shuffle *s = &w->shuffle;
    const int64_t size = s->channels / s->groups;
    for (int64_t c = 0; c < s->channels; c++)
        for (int64_t n = 0; n < w->images; n++)
            for (int64_t p = 0; p < w->pixels; p++) {
                char *to = channel_at(s->outputs, c, n, p);
                const int64_t from = c % s->groups * size + c / s->groups;
                if (to)
                    memcpy(to, channel_at(s->inputs, from, n, p), (size_t)s->element_bytes);
            }
}

static void shuffle_whole(const void *context, const void *table, int64_t begin, int64_t end)
{
    const whole *w = context;
    osw_plan plan;
    (void)begin, (void)end;
    if (table == driver_scalar_table) {
        shuffle_plainly(w);
        return;
    }
    memcpy(&osw_channels, table, sizeof osw_channels);
    void *scratch = malloc(osw_plan_bytes(&w->shuffle));
    if (!scratch)
        abort();
    if (w->planes)
        osw_plan_planes(&plan, &w->shuffle, w->images, w->pixels * w->shuffle.element_bytes,
                        scratch);
    else
        osw_plan_pixels(&plan, &w->shuffle, w->images, w->pixels, scratch);
    osw_plan_execute(&plan);
    free(scratch);
}

/* A tensor of `channels` channels, at times with a gap behind those of every pixel or image, or an
 * output without memory. */
static osw_segment make_segment(driver *d, const whole *w, driver_type type, int64_t channels,
                                bool written)
{
    const int64_t bytes = w->shuffle.element_bytes;
    const int64_t reach = channels + driver_below(MOST_GAP); /* of a pixel, in elements */
    const int64_t image = w->pixels * reach + driver_below(MOST_GAP);
    const int64_t count = w->images * image;
    osw_segment s = {.channels = channels};
    if (channels == 0 || (written && driver_below(5) == 0))
        return s;
    s.base = written ? driver_inout(d, type, count, DRIVER_EXACT) : driver_input(d, type, count);
    s.channel_step = w->planes ? w->pixels * bytes : bytes;
    s.pixel_step = w->planes ? bytes : reach * bytes;
    s.image_step = image * bytes;
    return s;
}

/* Cut the channels at random places, some of them equal. */
static osw_side make_side(driver *d, const whole *w, driver_type type, osw_segment *segments,
                          bool written)
{
    const int64_t count = 1 + driver_below(MOST_SEGMENTS);
    int64_t left = w->shuffle.channels;
    for (int64_t i = 0; i < count; i++) {
        const int64_t channels = i + 1 == count ? left : driver_below(left + 1);
        segments[i] = make_segment(d, w, type, channels, written);
        left -= channels;
    }
    return (osw_side){segments, count};
}

void driver_channels_plan(driver *d)
{
    static const int64_t groups[] = {1, 2, 3, 4, 7, 8, 16};
    int64_t lengths[DRIVER_MOST_LENGTHS];
    const int count = driver_lengths(d, 4, lengths);
    for (int i = 0; i < count; i++) {
        const osw_width width = (osw_width)driver_below(OSW_WIDTH_COUNT);
        whole w = {.images = 1 + driver_below(3),
                   .pixels = 1 + driver_below(9),
                   .planes = driver_below(3) == 0};
        const int64_t few = groups[driver_below(7)], many = 1 + lengths[i] / few;
        w.shuffle.groups = driver_below(2) ? few : many;
        w.shuffle.channels = few * many;
        w.shuffle.element_bytes = driver_bytes(types[width]);
        driver_case(d, w.planes ? "planes" : "pixels",
                    "channels %lld, groups %lld, bytes %lld, pixels %lld",
                    (long long)w.shuffle.channels, (long long)w.shuffle.groups,
                    (long long)w.shuffle.element_bytes, (long long)w.pixels);
        w.shuffle.inputs = make_side(d, &w, types[width], w.inputs, false);
        w.shuffle.outputs = make_side(d, &w, types[width], w.outputs, true);
        driver_run(d, shuffle_whole, &w, 1);
    }
}
