/* SPDX-License-Identifier: MIT */
/* What pays on this CPU on the way to memory: software prefetch, and stores around the caches. */
#ifndef OSW_CORE_PREFETCH_H
#define OSW_CORE_PREFETCH_H

#include <stdint.h>

/* Bytes between what a kernel works on and what it prefetches; 0: do not prefetch. Measured on
 * tensors beyond L2: 2 KiB ahead gains 5 to 20 % on Intel (1 to 4 KiB are alike) and loses 5 to 30
 * % on AMD Zen 4. */
extern int64_t osw_prefetch_ahead;

/* Bytes of input and output from which on the forward of a depthwise convolution prefetches the
 * rows below its strips; 0: always. Measured on AMD Zen 4: from 1 MB on gains 10 to 50 %; on Zen 5:
 * below 13 MB loses 2 to 27 % (1x5 gains 18 %), beyond gains 10 to 50 %; on an Intel Xeon (Emerald
 * Rapids): below 18 MB loses 5 to 22 % in 16 bits, gains 0 to 10 % in 32, beyond gains 8 to 43 %.
 */
extern int64_t osw_prefetch_strips_bytes;

/* The same for its backward. Measured: on Zen 4 gains from 1 MB on, on Zen 5 from 10 MB on; on that
 * Xeon below 12 MB loses 5 to 22 %, beyond gains 3 to 65 %. */
extern int64_t osw_prefetch_strips_back_bytes;

/* Bytes of input from which on an average over windows in channels_last prefetches the next window,
 * and the backward of a joined max pool what it gathers. Measured on AMD Zen 5, 1 to 50 MB: gains 2
 * to 50 %; on an Intel Xeon (Emerald Rapids): below 8 MB -5 to 9 %, beyond gains 0 to 25 %. */
extern int64_t osw_prefetch_windows_bytes;

/* Outputs of at least so many bytes are written around the caches; 0: none are. Measured on 8 to
 * 60 MB: a batch normalisation in inference gains 20 % on AMD Zen 4, in 32 bits 18 to 51 % on Zen
 * 5, in 16 bits 2 to 11 %; on Intel Cascade Lake, copies and normalisations lose 5 to 18 %. */
extern int64_t osw_stream_bytes;

/* The same for images that are converted into a batch, of whose bytes two thirds and more are
 * written. Measured on 10 to 39 MB on an Intel Xeon with AMX: floats gain 10 to 35 %, 16 bits 0 to
 * 25 %; copies of bytes lose. On AMD Zen 5 planes lose 10 to 27 %, channels_last -10 to 7 %. */
extern int64_t osw_stream_batch_bytes;

/* Set all for the CPU that this runs on. */
void osw_prefetch_detect(void);

#endif
