/* SPDX-License-Identifier: MIT */
#if defined(__x86_64__)

#    include "pool/avx2_file.h"

OSW_TARGET_BEGIN_AVX2

#    include "core/avx2_half.h"
#    include "pool/avx2_vector.h"

#    include "pool/avx2_lines.h"

#    include "pool/avx2_octets.h"
#    include "pool/avx2_reduce.h"

#    include "pool/avx2_keys.h"
#    include "pool/avx2_rows.h"
#    include "pool/avx2_strip.h"

#    include "pool/avx2_window.h"

#    define OSW_POOL_KERNELS "pool/avx2_max.h"
#    include "pool/avx2_dtypes.h"

OSW_TARGET_END

void osw_pool_fill_max__avx2(osw_pool_fn **table)
{
    OSW_POOL_FILL(max_planes)
    OSW_POOL_FILL(max_pixels)
    OSW_POOL_FILL(adaptive_max_planes)
    OSW_POOL_FILL(adaptive_max_pixels)
    OSW_POOL_FILL(amax_planes)
    OSW_POOL_FILL(amax_pixels)
    OSW_POOL_FILL(amax_backward_planes)
    OSW_POOL_FILL(amax_backward_pixels)
}

#endif
