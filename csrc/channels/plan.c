/* SPDX-License-Identifier: MIT */
#include "channels/plan.h"

#include "channels/holds.h"
#include "core/ints.h"
#include "core/parallel.h"

#include <assert.h>
#include <stdbool.h>

/* A block of pixels that stays in the first-level cache while every run passes over it. */
enum { BLOCK_BYTES = 16384 };

/* Where channel `channel` of one side lies. */
typedef struct osw_place {
    const osw_segment *segment;
    int64_t offset; /* channel within the segment */
} osw_place;

/* The sides of the transpose, in channels of the whole side. */
typedef struct osw_matrix {
    osw_side narrow, wide;
    int64_t rows, columns;
    bool interleave; /* narrow to wide */
} osw_matrix;

static osw_place find(osw_side side, int64_t channel)
{
    const osw_segment *s = side.segments;
    while (channel >= s->channels) {
        channel -= s->channels;
        s++;
        assert(s < side.segments + side.count);
    }
    return (osw_place){s, channel};
}

static osw_stream stream_at(osw_place place)
{
    const osw_segment *s = place.segment;
    char *base = s->base ? s->base + place.offset * s->channel_step : NULL;
    return (osw_stream){base, s->image_step, s->pixel_step};
}

static int64_t remaining(osw_place place)
{
    return place.segment->channels - place.offset;
}

/* The narrow side has the fewer rows. */
static osw_matrix matrix_of(const osw_shuffle *s)
{
    const int64_t size = s->channels / s->groups;
    if (s->groups <= size)
        return (osw_matrix){s->inputs, s->outputs, s->groups, size, true};
    return (osw_matrix){s->outputs, s->inputs, size, s->groups, false};
}

size_t osw_plan_bytes(const osw_shuffle *s)
{
    assert(osw_shuffle_holds(s));
    const osw_matrix m = matrix_of(s);
    /* Every segment ends at most one run, and the last run ends by itself. */
    const size_t runs = (size_t)(s->inputs.count + s->outputs.count + 1);
    return runs * (sizeof(osw_run) + (size_t)m.rows * sizeof(osw_stream)) +
           (size_t)s->channels * sizeof(osw_move);
}

static void add_move(osw_plan *plan, osw_stream from, osw_stream to)
{
    if (to.base)
        plan->moves[plan->move_count++] = (osw_move){from, to};
}

static void add_column(osw_plan *plan, const osw_matrix *m, int64_t j)
{
    for (int64_t i = 0; i < m->rows; i++) {
        const osw_stream narrow = stream_at(find(m->narrow, i * m->columns + j));
        const osw_stream wide = stream_at(find(m->wide, j * m->rows + i));
        add_move(plan, m->interleave ? narrow : wide, m->interleave ? wide : narrow);
    }
}

/* Add the longest run that starts at column j, or one column of single moves if a wide segment
 * ends inside the column or an output is not wanted. Returns the number of columns added. */
static int64_t add_columns(osw_plan *plan, const osw_matrix *m, int64_t j, osw_stream *narrow)
{
    const osw_place wide = find(m->wide, j * m->rows);
    int64_t columns = osw_min_int(m->columns - j, remaining(wide) / m->rows);
    bool wanted = wide.segment->base != NULL;
    for (int64_t i = 0; i < m->rows; i++) {
        const osw_place place = find(m->narrow, i * m->columns + j);
        columns = osw_min_int(columns, remaining(place));
        narrow[i] = stream_at(place);
        wanted = wanted && narrow[i].base;
    }
    if (columns == 0 || !wanted) {
        add_column(plan, m, j);
        return 1;
    }
    plan->runs[plan->run_count++] = (osw_run){m->rows, columns, stream_at(wide), narrow};
    return columns;
}

/* The kernel for so many rows, and for elements of so many bytes. */
static osw_rows rows_of(int64_t rows)
{
    static const osw_rows made_for[] = {OSW_ROWS_ANY, OSW_ROWS_1,   OSW_ROWS_2,
                                        OSW_ROWS_3,   OSW_ROWS_4,   OSW_ROWS_ANY,
                                        OSW_ROWS_ANY, OSW_ROWS_ANY, OSW_ROWS_8};
    return rows < (int64_t)(sizeof made_for / sizeof *made_for) ? made_for[rows] : OSW_ROWS_ANY;
}

static osw_width width_of(int64_t element_bytes)
{
    int width = 0;
    while (element_bytes > 1 << width)
        width++;
    assert(element_bytes == 1 << width && width < OSW_WIDTH_COUNT);
    return (osw_width)width;
}

static void pick_kernels(osw_plan *plan, int64_t element_bytes, int64_t rows, bool interleave)
{
    const osw_direction direction = interleave ? OSW_interleave : OSW_deinterleave;
    const osw_rows made_for = rows_of(rows);
    const osw_width width = width_of(element_bytes);
    plan->transpose = osw_channels.transpose[direction][made_for][width];
    plan->transpose_id = OSW_TRANSPOSE_ID(direction, made_for, width);
    plan->move = osw_channels.move[width];
    plan->move_id = OSW_MOVE_ID + width;
}

static bool images_join(osw_side side, int64_t pixels)
{
    for (int64_t i = 0; i < side.count; i++)
        if (side.segments[i].image_step != pixels * side.segments[i].pixel_step)
            return false;
    return true;
}

void osw_plan_pixels(osw_plan *plan, const osw_shuffle *s, int64_t images, int64_t pixels,
                     void *scratch)
{
    assert(osw_shuffle_holds(s) && images >= 1 && pixels >= 1);
    assert(osw_side_is_dense(s->inputs, s->element_bytes));
    assert(osw_side_is_dense(s->outputs, s->element_bytes));
    const osw_matrix m = matrix_of(s);
    const int64_t max_runs = s->inputs.count + s->outputs.count + 1;
    osw_stream *streams = scratch;
    *plan = (osw_plan){.images = images, .pixels = pixels};
    plan->moves = (osw_move *)(streams + max_runs * m.rows);
    plan->runs = (osw_run *)(plan->moves + s->channels);
    plan->pixel_bytes = s->channels * s->element_bytes;
    if (images_join(s->inputs, pixels) && images_join(s->outputs, pixels)) {
        plan->images = 1;
        plan->pixels = images * pixels;
    }
    pick_kernels(plan, s->element_bytes, m.rows, m.interleave);
    for (int64_t j = 0; j < m.columns;)
        j += add_columns(plan, &m, j, streams + plan->run_count * m.rows);
}

void osw_plan_planes(osw_plan *plan, const osw_shuffle *s, int64_t images, int64_t plane_bytes,
                     void *scratch)
{
    assert(osw_shuffle_holds(s) && images >= 1 && plane_bytes >= 1);
    const osw_matrix m = matrix_of(s);
    *plan = (osw_plan){.images = images, .plane_bytes = plane_bytes, .moves = scratch};
    plan->move_id = OSW_COPY_ID;
    plan->copy = osw_channels.copy;
    /* In the order of the wide side: one stream there, `rows` streams on the other. */
    for (int64_t j = 0; j < m.columns; j++)
        add_column(plan, &m, j);
}

/* An image is the transpose of its planes: one run, whose columns are the pixels. */
void osw_plan_format(osw_plan *plan, osw_run *run, osw_stream *streams, const osw_segment *planes,
                     const osw_segment *wide, int64_t images, int64_t pixels, int64_t element_bytes,
                     bool interleave)
{
    assert(images >= 1 && pixels >= 1 && planes->channels >= 1);
    for (int64_t c = 0; c < planes->channels; c++)
        streams[c] = (osw_stream){planes->base + c * planes->channel_step, planes->image_step, 0};
    *run = (osw_run){planes->channels, pixels, {wide->base, wide->image_step, 0}, streams};
    *plan = (osw_plan){.runs = run,
                       .run_count = 1,
                       .images = images,
                       .pixels = 1,
                       .pixel_bytes = planes->channels * pixels * element_bytes};
    pick_kernels(plan, element_bytes, run->rows, interleave);
}

static void planes_body(int64_t begin, int64_t end, void *context)
{
    const osw_plan *plan = context;
    plan->copy(plan->moves, plan->move_count, plan->plane_bytes, begin, end);
}

/* Pixels [begin, end) are counted over all images. */
static void pixels_body(int64_t begin, int64_t end, void *context)
{
    const osw_plan *plan = context;
    const int64_t block = BLOCK_BYTES / plan->pixel_bytes + 1;
    while (begin < end) {
        const int64_t image = begin / plan->pixels, first = begin % plan->pixels;
        const int64_t last = osw_min_int(first + osw_min_int(block, end - begin), plan->pixels);
        for (int64_t i = 0; i < plan->run_count; i++)
            plan->transpose(&plan->runs[i], image, first, last);
        if (plan->move_count)
            plan->move(plan->moves, plan->move_count, image, first, last);
        begin += last - first;
    }
}

void osw_plan_execute(const osw_plan *plan)
{
    osw_plan *context = (osw_plan *)plan;
    assert(osw_plan_holds(plan));
    if (plan->plane_bytes) {
        if (plan->move_count)
            osw_parallel_for(plan->images * plan->move_count, osw_grain(2 * plan->plane_bytes),
                             planes_body, context);
        return;
    }
    osw_parallel_for(plan->images * plan->pixels, osw_grain(2 * plan->pixel_bytes), pixels_body,
                     context);
}
