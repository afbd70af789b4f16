/* SPDX-License-Identifier: MIT */
/* What core/each_float.h defined for one dtype is forgotten. */
#undef SUFFIX
#undef ELEMENT
#undef VALUE
#undef LOAD
#undef STORE
#undef VECTOR
#undef MASK
