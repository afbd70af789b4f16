/* SPDX-License-Identifier: MIT */
/* Ends what channels/each_width.h defines for one width. */
#undef SUFFIX
#undef WIDTH
#undef ELEMENT
