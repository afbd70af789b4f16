/* SPDX-License-Identifier: MIT */
/* What pays on this CPU on the way to memory: software prefetch, and stores around the caches. */
#ifndef OSW_CORE_PREFETCH_H
#define OSW_CORE_PREFETCH_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes between what a kernel works on and what it prefetches; 0: do not prefetch. Measured on
 * tensors beyond L2: 2 KiB ahead gains 5 to 20 % on Intel (1 to 4 KiB are alike) and loses 5 to 30
 * % on AMD Zen 4. */
extern int64_t osw_prefetch_ahead;

/* Whether the forward of a depthwise convolution prefetches the rows below its strips, if they are
 * beyond L2. Measured on 4 to 30 MB: gains 10 to 50 % on AMD Zen 4, and loses 5 to 25 % on an Intel
 * Xeon with AMX, where backwards gain up to 30 % by it. */
extern bool osw_prefetch_strips;

/* Outputs of at least so many bytes are written around the caches; 0: none are. Measured on 8 to
 * 60 MB: a batch normalisation in inference gains 20 % on AMD Zen 4; on Intel Cascade Lake, copies
 * and normalisations lose 5 to 18 %. */
extern int64_t osw_stream_bytes;

/* The same for images that are converted into a batch, of whose bytes two thirds and more are
 * written. Measured on 10 to 39 MB on an Intel Xeon with AMX: floats gain 10 to 35 %, 16 bits 0 to
 * 25 %; copies of bytes lose. Not measured on AMD. */
extern int64_t osw_stream_batch_bytes;

/* Set all for the CPU that this runs on. */
void osw_prefetch_detect(void);

#endif
