/* SPDX-License-Identifier: MIT */
#include "pointwise/pointwise.h"

#include "core/ints.h"
#include "core/scratch.h"

enum {
    PIXELS = 64,       /* parts of an image are multiples of it, */
    PLANES = 24,       /* and those of its planes, */
    COLUMNS = 64,      /* and those of the weight: the widest panel of floats, */
    FEW_COLUMNS = 16,  /* or a vector of it, so that threads share few columns evenly */
    MOST_SHARES = 8,   /* of an image or a weight: in more of them it is packed too often */
    PART_PIXELS = 528, /* of a part of the images at least */
    MOST_PARTS = 32,
    JOINED_PIXELS = 64, /* of an image, fewer of which are joined with those of others, */
    MOST_JOINED = 256,  /* up to so many */
    PARTIAL = 1 << 18,  /* elements that all parts of a gradient of the weight may hold */
};

osw_pointwise_fn *osw_pointwise_table[OSW_POINTWISE_COUNT];

OSW_DEFINE_SELECT(osw_pointwise_select, osw_pointwise_fn **, osw_pointwise_table,
                  OSW_FILLS(osw_pointwise_fill))

void osw_pointwise_cut(osw_pointwise *planes)
{
    const int64_t weight = planes->out_planes * planes->in_planes;
    const int64_t fitting = weight < PARTIAL / MOST_PARTS ? MOST_PARTS : PARTIAL / weight;
    const int64_t least = osw_ceil(PART_PIXELS, planes->pixels);
    const int64_t even = fitting > 1 ? osw_ceil(planes->images, fitting) : planes->images;
    planes->part_images = osw_min_int(osw_max_int(even, least), planes->images);
    planes->parts = osw_ceil(planes->images, planes->part_images);
}

/* Into how many shares each of `count` has to be cut if threads shall wait for each other for no
 * more than an eighth of the time. */
static int64_t shares(int64_t count, int threads)
{
    int64_t wanted = 1;
    while (wanted < MOST_SHARES &&
           8 * osw_ceil(wanted * count, threads) * threads > 9 * wanted * count)
        wanted++;
    return wanted;
}

/* Parts of `total` in whole `unit`s. */
static int64_t length_of(int64_t total, int64_t unit, int64_t parts)
{
    return osw_ceil(osw_ceil(total, unit), parts) * unit;
}

/* Images of which the planes are multiplied as one, so that their pixels fill vectors. */
static int64_t joined(const osw_pointwise *planes, int64_t element_bytes, int threads)
{
    const int64_t image = (planes->in_planes + planes->out_planes) * planes->pixels * element_bytes;
    const int64_t fitting = osw_min_int(OSW_SCRATCH_OUTER / image, MOST_JOINED / planes->pixels);
    const int64_t share = osw_ceil(planes->images, threads);
    return planes->pixels < JOINED_PIXELS ? osw_max_int(osw_min_int(fitting, share), 1) : 1;
}

osw_pointwise_grid osw_pointwise_image_grid(const osw_pointwise *planes, int64_t count,
                                            int64_t element_bytes, int threads)
{
    const int64_t images = joined(planes, element_bytes, threads);
    const int64_t image_parts = osw_ceil(planes->images, images);
    const int64_t wanted = shares(image_parts, threads);
    const bool by_pixels = planes->pixels >= wanted * PIXELS;
    const int64_t pixel_length = length_of(planes->pixels, PIXELS, by_pixels ? wanted : 1);
    const int64_t plane_length = length_of(count, PLANES, by_pixels ? 1 : wanted);
    return (osw_pointwise_grid){image_parts,
                                images,
                                osw_ceil(count, plane_length),
                                plane_length,
                                osw_ceil(planes->pixels, pixel_length),
                                pixel_length};
}

osw_pointwise_grid osw_pointwise_weight_grid(const osw_pointwise *planes, int threads)
{
    const bool few = planes->in_planes < 2 * MOST_SHARES * COLUMNS;
    const int64_t length =
        length_of(planes->in_planes, few ? FEW_COLUMNS : COLUMNS, shares(planes->parts, threads));
    return (osw_pointwise_grid){
        planes->parts, planes->part_images, osw_ceil(planes->in_planes, length), length, 1,
        planes->pixels};
}

osw_pointwise_block osw_pointwise_block_at(const osw_pointwise *planes,
                                           const osw_pointwise_grid *grid, int64_t i, int64_t count)
{
    const int64_t part = i / (grid->plane_parts * grid->pixel_parts);
    const int64_t image = part * grid->image_length;
    const int64_t first = i / grid->pixel_parts % grid->plane_parts * grid->plane_length;
    const int64_t begin = i % grid->pixel_parts * grid->pixel_length;
    return (osw_pointwise_block){
        .image_begin = image,
        .image_end = osw_min_int(image + grid->image_length, planes->images),
        .begin = begin,
        .end = osw_min_int(begin + grid->pixel_length, planes->pixels),
        .first = first,
        .last = osw_min_int(first + grid->plane_length, count),
        .part = part,
    };
}
