# SPDX-License-Identifier: MIT
"""Made by `python -m opswap.layout.measure`: torch's operators on channels_last images, on the CPU."""

__all__ = ["COPIED_INSIDE", "LOSES", "MEASURED_WITH"]

MEASURED_WITH = "torch 2.13.0, CPU"

# A channels_last image goes in, a contiguous one comes out.
LOSES = frozenset(
    {
        "aten._adaptive_avg_pool3d",
        "aten._adaptive_avg_pool3d_backward",
        "aten._fft_r2c",
        "aten._log_softmax",
        "aten._softmax",
        "aten._upsample_bicubic2d_aa_backward",
        "aten.adaptive_max_pool3d",
        "aten.avg_pool3d",
        "aten.avg_pool3d_backward",
        "aten.cumsum",
        "aten.fractional_max_pool2d",
        "aten.glu_backward",
        "aten.grid_sampler_2d",
        "aten.grid_sampler_2d_backward",
        "aten.index",
        "aten.index_select",
        "aten.log_sigmoid_forward",
        "aten.masked_fill",
        "aten.mean",
        "aten.native_layer_norm",
        "aten.native_layer_norm_backward",
        "aten.repeat",
        "aten.select_backward",
        "aten.sum",
        "aten.topk",
        "aten.tril",
        "aten.upsample_bicubic2d_backward",
        "aten.upsample_nearest3d_backward",
    }
)

# Copies its input into another format and gives the format back.
COPIED_INSIDE = frozenset(
    {
        "aten._upsample_bilinear2d_aa_backward",
        "aten.im2col",
    }
)
