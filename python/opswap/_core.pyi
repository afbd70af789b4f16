# SPDX-License-Identifier: MIT
# Kernels of opswap, for opswap.ops alone. Functions plain_* return NotImplemented for a call that is not an ordinary
# one, others for a tensor that must be dense first; the names of arguments are those of the docstrings.

from collections.abc import Sequence
from typing import Any

from torch import Generator, Tensor

Ints = Sequence[int]

def adaptive_max_pool(input: Tensor, size: Ints, with_index: bool, /) -> Any: ...
def adaptive_max_pool_backward(
    grad_output: Tensor, index: Tensor, input_size: Ints, channels_last: bool, /
) -> Any: ...
def amax(input: Tensor, /) -> Any: ...
def amax_backward(input: Tensor, output: Tensor, grad_output: Tensor, /) -> Any: ...
def apply_mask(input: Tensor, mask: Tensor, scale: float, output: Tensor, /) -> None: ...
def are_as(tensors: tuple[Any, ...], packed: Any, /) -> bool: ...
def avg_pool(
    input: Tensor,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
    channel_step: int,
    /,
) -> Any: ...
def avg_pool_backward(
    grad_output: Tensor,
    input_size: Ints,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
    channel_step: int,
    channels_last: bool,
    /,
) -> Any: ...
def batch_norm(
    training: bool,
    momentum: float,
    eps: float,
    activation: str | None,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    result: int,
    graph: bool,
    /,
) -> Any: ...
def batch_norm_backward(
    training: bool,
    eps: float,
    activation: str | None,
    needed: tuple[bool, ...],
    grad_output: Tensor,
    input: Tensor,
    statistics: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    plain: bool,
    /,
) -> Any: ...
def channels_variants() -> dict[str, int]: ...
def conv_variants() -> dict[str, int]: ...
def depthwise(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, /
) -> Tensor: ...
def depthwise_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    wants_input: bool,
    wants_weight: bool,
    wants_bias: bool,
    /,
) -> tuple[Tensor | None, ...]: ...
def depthwise_fits(
    input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, /
) -> bool: ...
def depthwise_fits_but_for_format(
    input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, /
) -> bool: ...
def depthwise_variants() -> dict[str, int]: ...
def describe_shuffle(tensors: Any, groups: Any, sections: Any, inverse: Any, /) -> Any: ...
def draw_mask(generator: Generator, keep: float, count: int, mask: Tensor, /) -> None: ...
def entries_stand(packed: Any, /) -> bool: ...
def group_norm(
    groups: int, eps: float, input: Tensor, weight: Tensor | None, bias: Tensor | None, /
) -> Any: ...
def group_norm_backward(
    groups: int,
    eps: float,
    needed: tuple[bool, ...],
    grad_output: Tensor,
    input: Tensor,
    statistics: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    /,
) -> Any: ...
def grouped_linear(input: Tensor, weight: Tensor, bias: Tensor | None, sections: Ints | None, /) -> Any: ...
def grouped_linear_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    sections: Ints | None,
    wants_input: bool,
    wants_weight: bool,
    wants_bias: bool,
    /,
) -> Any: ...
def isa_available() -> tuple[str, ...]: ...
def isa_current() -> str: ...
def isa_hidden() -> tuple[str, ...]: ...
def isa_limit(tier: str, /) -> None: ...
def chain_fits(options: Any, tensors: Any, /) -> Any: ...
def chain_folded_fits(options: Any, tensors: Any, folded: Any, /) -> Any: ...
def chain_leads() -> bool: ...
def chain_variants() -> dict[str, int]: ...
def depthwise_leads() -> bool: ...
def layer_norm(eps: float, input: Tensor, weight: Tensor | None, bias: Tensor | None, /) -> Any: ...
def layer_norm_backward(
    eps: float,
    needed: tuple[bool, ...],
    grad_output: Tensor,
    input: Tensor,
    statistics: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    /,
) -> Any: ...
def layer_norm_variants() -> dict[str, int]: ...
def kind_of(tensor: Any, most: int, /) -> bytes | None: ...
def linear_leads() -> bool: ...
def linear_variants() -> dict[str, int]: ...
def pointwise_variants() -> dict[str, int]: ...
def max_pool(
    input: Tensor,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool,
    channel_step: int,
    with_offsets: bool,
    /,
) -> Any: ...
def max_pool_backward(
    grad_output: Tensor,
    offsets: Tensor,
    input_size: Ints,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    channel_step: int,
    channels_last: bool,
    /,
) -> Any: ...
def max_pool_indices(
    offsets: Tensor,
    indices: Tensor,
    input_size: Ints,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    /,
) -> Any: ...
def memory_flush(on: bool, /) -> int: ...
def memory_flush_restore() -> int: ...
def memory_flush_save() -> int: ...
def memory_reuse(on: bool, /) -> bool: ...
def new_format(input: Any, channels_last: bool, /) -> Any: ...
def new_shuffled(
    inputs: tuple[Any, ...], groups: int, sections: Any, wanted: Any, channels_last: bool, /
) -> Any: ...
def norm_variants() -> dict[str, int]: ...
def pack_entries(entries: tuple[tuple[Any, ...], ...], /) -> Any: ...
def pack_kinds(tensors: tuple[Any, ...], placed: bool, /) -> Any: ...
def pack_seals(seals: tuple[tuple[Any, ...], ...], /) -> Any: ...
def plain_adaptive_max_pool(spatial: int, input: Any, output_size: Any, trains: bool, /) -> Any: ...
def plain_adaptive_max_pool_backward(
    input_size: Any, memory_format: Any, index: Any, grad_output: Any, /
) -> Any: ...
def plain_amax(keepdim: bool, input: Any, trains: bool, /) -> Any: ...
def plain_amax_backward(input: Any, output: Any, positions: Any, grad_output: Any, /) -> Any: ...
def plain_avg_pool(
    volumes: bool,
    input: Any,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: Any,
    count_include_pad: Any,
    divisor_override: Any,
    trains: bool,
    /,
) -> Any: ...
def plain_avg_pool_backward(*described_and_grad_output: Any) -> Any: ...
def plain_chain(options: Any, tensors: Any, /) -> Any: ...
def plain_chain_backward(
    options: Any, tensors: Any, grad_output: Any, statistics: Any, zs: Any, needed: Any, /
) -> Any: ...
def plain_chain_folded(options: Any, tensors: Any, folded: Any, /) -> Any: ...
def plain_conv(input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, /) -> Any: ...
def plain_conv_backward(
    grad_output: Any,
    input: Any,
    weight: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    want_input: bool,
    want_weight: bool,
    want_bias: bool,
    /,
) -> Any: ...
def plain_depthwise(
    input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, /
) -> Any: ...
def plain_depthwise_backward(
    grad_output: Any,
    input: Any,
    weight: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    wants_input: bool,
    wants_weight: bool,
    wants_bias: bool,
    /,
) -> Any: ...
def plain_eager() -> bool: ...
def plain_eager_without_autocast() -> bool: ...
def plain_grouped_linear(input: Any, weight: Any, bias: Any, sections: Any, /) -> Any: ...
def plain_grouped_linear_backward(
    grad_output: Any,
    input: Any,
    weight: Any,
    sections: Any,
    wants_input: Any,
    wants_weight: Any,
    wants_bias: Any,
    /,
) -> Any: ...
def plain_batch_norm_max_pool(
    training: bool,
    momentum: float,
    eps: float,
    activation: str | None,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    trains: bool,
    /,
) -> Any: ...
def plain_batch_norm_max_pool_backward(
    training: bool,
    eps: float,
    activation: str | None,
    needed: tuple[bool, bool, bool],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    grad_output: Tensor,
    offsets: Tensor,
    input: Tensor,
    statistics: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    /,
) -> Any: ...
def plain_over_mean_square(input: Tensor, trains: bool, /) -> Any: ...
def plain_over_mean_square_backward(grad_output: Tensor, input: Tensor, mean_square: float, /) -> Any: ...
def plain_max_pool(
    volumes: bool,
    input: Any,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: Any,
    trains: bool,
    /,
) -> Any: ...
def plain_max_pool_backward(*described_offsets_and_grad_output: Any) -> Any: ...
def plain_pointwise(input: Any, weight: Any, bias: Any, stride: Any, /) -> Any: ...
def plain_pointwise_backward(
    grad_output: Any,
    input: Any,
    weight: Any,
    stride: Any,
    want_input: bool,
    want_weight: bool,
    want_bias: bool,
    /,
) -> Any: ...
def plain_tensors(tensors: Any, /) -> bool: ...
def pool_variants() -> dict[str, int]: ...
def prepare_chain(options: Any, tensors: Any, folded: Any, /) -> Any: ...
def record_calls(tape: list[Any] | None, /) -> None: ...
def recording() -> bool: ...
def run_prepared_chain(prepared: Any, input: Any, /) -> Any: ...
def threads() -> int: ...
def unaltered(modules: tuple[Any, ...], packed: Any, /) -> bool: ...
