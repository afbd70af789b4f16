/* SPDX-License-Identifier: MIT */
/* Includes the header EACH once per width of an element up to MAX_WIDTH bits, with SUFFIX, WIDTH
 * and ELEMENT defined; as core/each_float.h does per dtype. Without EACH, as when a template header
 * is compiled alone, it defines the names for 8 bits and includes nothing. */
#include "core/names.h"

#include <stdint.h>

#ifndef EACH
#    define SUFFIX  x8
#    define WIDTH   8
#    define ELEMENT uint8_t
#    ifndef TIER
#        define TIER scalar
#    endif
#else

#    define SUFFIX  x8
#    define WIDTH   8
#    define ELEMENT uint8_t
#    include EACH
#    include "channels/each_width_end.h"

#    define SUFFIX  x16
#    define WIDTH   16
#    define ELEMENT uint16_t
#    include EACH
#    include "channels/each_width_end.h"

#    define SUFFIX  x32
#    define WIDTH   32
#    define ELEMENT uint32_t
#    include EACH
#    include "channels/each_width_end.h"

#    define SUFFIX  x64
#    define WIDTH   64
#    define ELEMENT uint64_t
#    include EACH
#    include "channels/each_width_end.h"

#    if MAX_WIDTH >= 128
#        define SUFFIX  x128
#        define WIDTH   128
#        define ELEMENT osw_pair
#        include EACH
#        include "channels/each_width_end.h"
#    endif

#    undef EACH
#endif
