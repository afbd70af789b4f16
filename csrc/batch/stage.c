/* SPDX-License-Identifier: MIT */
#include "batch/stage.h"
#include "core/half.h"

#include <string.h>

#define OSW_AS_IT_IS(x) (x)
#define OSW_FLOAT_OF(x) ((float)(x))

/* Elements of `type` may be at any address. */
#define STAGE(name, type, result, of)                                                              \
    static void name(const char *from, const osw_batch_image *image, int64_t pixels,               \
                     int64_t channels, result *to)                                                 \
    {                                                                                              \
        for (int64_t i = 0; i < pixels; i++)                                                       \
            for (int64_t c = 0; c < channels; c++) {                                               \
                type x;                                                                            \
                memcpy(&x, from + i * image->pixel_stride + c * image->channel_stride, sizeof x);  \
                to[i * channels + c] = of(x);                                                      \
            }                                                                                      \
    }

STAGE(move_x8, uint8_t, uint8_t, OSW_AS_IT_IS)
STAGE(move_x16, uint16_t, uint16_t, OSW_AS_IT_IS)
STAGE(move_x32, uint32_t, uint32_t, OSW_AS_IT_IS)
STAGE(convert_u16, uint16_t, float, OSW_FLOAT_OF)
STAGE(convert_f16, uint16_t, float, osw_float_of_f16)
STAGE(convert_f64, double, float, OSW_FLOAT_OF)

void osw_batch_stage(const osw_batch_job *job, const osw_batch_image *image, int64_t y,
                     int64_t first, int64_t pixels, bool convert, void *to)
{
    const char *from = image->data + y * image->row_stride + first * image->pixel_stride;
    const int64_t channels = job->channels;
    if (convert && job->from == OSW_BATCH_U16)
        convert_u16(from, image, pixels, channels, to);
    else if (convert && job->from == OSW_BATCH_F16)
        convert_f16(from, image, pixels, channels, to);
    else if (convert && job->from == OSW_BATCH_F64)
        convert_f64(from, image, pixels, channels, to);
    else if (job->from == OSW_BATCH_U8)
        move_x8(from, image, pixels, channels, to);
    else if (job->from == OSW_BATCH_F32)
        move_x32(from, image, pixels, channels, to);
    else
        move_x16(from, image, pixels, channels, to);
}
