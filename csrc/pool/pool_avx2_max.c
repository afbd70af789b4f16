/* SPDX-License-Identifier: MIT */
#if defined(__x86_64__)

#    include "pool/avx2_file.h"

OSW_TARGET_BEGIN_AVX2

#    include "core/avx2_half.h"
#    include "pool/kernels/rounding.h"

#    include "pool/kernels/lines.h"

#    include "pool/kernels/tile.h"
#    include "pool/kernels/adaptive_windows.h"

#    include "pool/kernels/keys.h"
#    include "pool/kernels/rows.h"
#    include "pool/kernels/strip.h"

#    include "pool/kernels/windows.h"

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
