/* SPDX-License-Identifier: MIT */
#if defined(__x86_64__)

#    include "pool/avx2_file.h"

OSW_TARGET_BEGIN_AVX2

#    include "core/avx2_half.h"
#    include "pool/kernels/rounding.h"

#    include "pool/kernels/margin.h"

#    include "pool/kernels/lines.h"

#    include "pool/kernels/line_blocks.h"
#    include "pool/kernels/rows.h"

#    include "pool/kernels/sources.h"

#    include "pool/kernels/tile.h"
#    include "pool/kernels/avg_windows.h"

#    define OSW_POOL_KERNELS "pool/avx2_backward.h"
#    include "pool/avx2_dtypes.h"

OSW_TARGET_END

void osw_pool_fill_backward__avx2(osw_pool_fn **table)
{
    OSW_POOL_FILL(max_backward_planes)
    OSW_POOL_FILL(max_backward_pixels)
    OSW_POOL_FILL(avg_planes)
    OSW_POOL_FILL(avg_pixels)
    OSW_POOL_FILL(avg_backward_planes)
    OSW_POOL_FILL(avg_backward_pixels)
}

#endif
