/* SPDX-License-Identifier: MIT */
/* Flat indices from the offsets of max pools, against the window counted tap by tap. */
#include "driver.h"
#include "driver_rooms.h"
#include "pool/run.h"
#include "pool/window.h"

#include <string.h>

enum { MOST_TAPS = 256 };

typedef struct job {
    osw_pool pool;
    osw_pool_tensor indices;
    bool pixels, table;
} job;

/* Where tap `tap` of the window of this output lies in its plane of the input; -1: no tap. */
static int64_t index_of(const osw_pool_dim *dims, const int64_t *output, int64_t tap)
{
    int64_t at[OSW_POOL_DIMS], index = 0;
    for (int i = OSW_POOL_DIMS - 1; i >= 0; i--) {
        at[i] =
            output[i] * dims[i].stride - dims[i].padding + tap % dims[i].kernel * dims[i].dilation;
        tap /= dims[i].kernel;
    }
    for (int i = 0; i < OSW_POOL_DIMS; i++)
        index = index * dims[i].input + at[i];
    return tap ? -1 : index;
}

static void write_plainly(const job *j)
{
    const osw_pool *p = &j->pool;
    const osw_pool_dim *dims = p->dims;
    for (int64_t n = 0; n < p->images; n++)
        for (int64_t c = 0; c < p->channels; c++)
            for (int64_t o = 0; o < osw_output_plane(p); o++) {
                const int64_t plane = dims[HEIGHT].output * dims[WIDTH].output;
                const int64_t output[] = {o / plane, o % plane / dims[WIDTH].output,
                                          o % dims[WIDTH].output};
                const int64_t from = n * p->offsets.image_step + c * p->offsets.channel_step +
                                     o * p->offsets.pixel_step;
                const int64_t to = n * j->indices.image_step + c * j->indices.channel_step +
                                   o * j->indices.pixel_step;
                const int64_t tap = p->wide ? ((const int32_t *)p->offsets.base)[from]
                                            : ((const uint8_t *)p->offsets.base)[from];
                ((int64_t *)j->indices.base)[to] =
                    index_of(dims, output, tap < 0 ? INT32_MAX : tap);
            }
}

static void write_indices(const void *context, const void *table, int64_t begin, int64_t end)
{
    const job *j = context;
    const osw_pool_dim *dims = j->pool.dims;
    const int64_t taps = dims[DEPTH].kernel * dims[HEIGHT].kernel * dims[WIDTH].kernel;
    int64_t distance[MOST_TAPS];
    (void)begin, (void)end;
    if (table == driver_scalar_table) {
        write_plainly(j);
        return;
    }
    osw_pool_distances(&j->pool, distance, taps);
    const osw_pool_indices work = {&j->pool, j->indices, j->table ? distance : NULL, j->pixels};
    const int64_t units = osw_pool_units(&j->pool, true, false, j->pixels);
    osw_pool_run_indices(&work, units, units * osw_output_plane(&j->pool));
}

static osw_pool_dim draw_dim(void)
{
    osw_pool_dim dim = {.kernel = 1 + driver_below(5),
                        .stride = 1 + driver_below(3),
                        .dilation = 1 + driver_below(2)};
    const int64_t reach = dim.dilation * (dim.kernel - 1) + 1;
    dim.padding = driver_below(dim.kernel / 2 + 1);
    dim.input = reach + driver_below(9);
    dim.output = (dim.input + 2 * dim.padding - reach) / dim.stride + 1;
    return dim;
}

/* Taps of the window, and one in eight that it has not. */
static void *draw_offsets(driver *d, const osw_pool *p, int64_t count)
{
    const int64_t taps = p->dims[DEPTH].kernel * p->dims[HEIGHT].kernel * p->dims[WIDTH].kernel;
    void *offsets = driver_input(d, p->wide ? DRIVER_U32 : DRIVER_U8, count);
    for (int64_t i = 0; i < count; i++) {
        if (driver_below(8) == 0)
            continue;
        if (p->wide)
            ((int32_t *)offsets)[i] = (int32_t)driver_below(taps);
        else
            ((uint8_t *)offsets)[i] = (uint8_t)driver_below(taps);
    }
    driver_keep(d, offsets);
    return offsets;
}

static osw_pool_tensor place(void *base, int64_t channels, int64_t plane, bool pixels)
{
    return (osw_pool_tensor){base, channels * plane, pixels ? 1 : plane, pixels ? channels : 1};
}

void driver_pool_indices(driver *d)
{
    for (int i = 0; i < 24; i++) {
        job j = {.pool = {.images = 1 + driver_below(2),
                          .channels = 1 + driver_below(9),
                          .channel_step = 1,
                          .wide = driver_below(2)},
                 .pixels = driver_below(2),
                 .table = driver_below(2)};
        osw_pool *p = &j.pool;
        p->input_channels = p->channels;
        for (int k = 0; k < OSW_POOL_DIMS; k++)
            p->dims[k] =
                k == DEPTH && driver_below(2) ? (osw_pool_dim){1, 1, 1, 1, 0, 1} : draw_dim();
        const int64_t plane = osw_output_plane(p), count = p->images * p->channels * plane;
        driver_case(d, "indices", "channels %lld, window %lld x %lld x %lld%s%s",
                    (long long)p->channels, (long long)p->dims[DEPTH].kernel,
                    (long long)p->dims[HEIGHT].kernel, (long long)p->dims[WIDTH].kernel,
                    p->wide ? ", wide" : "", j.pixels ? ", pixels" : ", planes");
        p->offsets = place(draw_offsets(d, p, count), p->channels, plane, j.pixels);
        j.indices =
            place(driver_output(d, DRIVER_U64, count, DRIVER_EXACT), p->channels, plane, j.pixels);
        driver_run(d, write_indices, &j, 1);
    }
}
