/* SPDX-License-Identifier: MIT */
/* Constants of MT19937. */
#ifndef OSW_DROPOUT_TWISTER_H
#define OSW_DROPOUT_TWISTER_H

#define OSW_TWISTER_SHIFT  397 /* a word is made of the one so far ahead, seen as a ring */
#define OSW_TWISTER_UPPER  0x80000000u
#define OSW_TWISTER_LOWER  0x7fffffffu
#define OSW_TWISTER_MATRIX 0x9908b0dfu
#define OSW_TEMPER_7       0x9d2c5680u
#define OSW_TEMPER_15      0xefc60000u

/* Bits of a 53-bit number that its first word gives. */
#define OSW_DRAW_UPPER 0x1fffffu

#endif
