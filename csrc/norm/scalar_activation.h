/* SPDX-License-Identifier: MIT */
/* f and dy * f' of one value; included once a dtype with LOCAL and VALUE defined. */

static inline VALUE LOCAL(clamp6)(VALUE z)
{
    return z < 0 ? 0 : z > 6 ? 6 : z;
}

static inline VALUE LOCAL(activate)(VALUE z, osw_activation activation)
{
    switch (activation) {
    case OSW_RELU:
        return z < 0 ? 0 : z;
    case OSW_RELU6:
        return LOCAL(clamp6)(z);
    case OSW_HARDSWISH:
        return z * LOCAL(clamp6)(z + 3) / 6;
    default:
        return z;
    }
}

static inline VALUE LOCAL(gate)(VALUE dy, VALUE z, osw_activation activation)
{
    switch (activation) {
    case OSW_RELU:
        return z <= 0 ? 0 : dy;
    case OSW_RELU6:
        return z <= 0 || z >= 6 ? 0 : dy;
    case OSW_HARDSWISH:
        return z <= -3 ? 0 : z < 3 ? dy * (z / 3 + (VALUE)0.5) : dy;
    default:
        return dy;
    }
}
