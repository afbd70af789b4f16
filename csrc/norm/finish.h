/* SPDX-License-Identifier: MIT */
/* What becomes of the sums of a channel, also of sums that overflow. */
#ifndef OSW_NORM_FINISH_H
#define OSW_NORM_FINISH_H

#include <math.h>

/* What the mean has beyond the center. Running statistics may hold an infinite mean. */
static inline double osw_norm_beyond(double center, double mean)
{
    return isfinite(mean) ? center - mean : 0;
}

/* sum + beyond * other: what the mean has beyond the center, added to a sum about the center. An
 * infinite `other` has made `sum` infinite or NaN already; 0 or a rounding error times infinity
 * would make every such sum NaN. */
static inline double osw_norm_add_beyond(double sum, double beyond, double other)
{
    return isfinite(other) ? sum + beyond * other : sum;
}

/* From the means of x - center and of its square. A square that overflows, of finite values, makes
 * the variance infinite, not NaN. */
static inline double osw_norm_variance(double shift, double square)
{
    const double variance = isinf(square) && isfinite(shift) ? square : square - shift * shift;
    return variance < 0 ? 0 : variance;
}

#endif
