# SPDX-License-Identifier: MIT
"""What to change at a line, in words: a rule of opswap.swap, another call, a parameter to convert."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.parameter import Parameter

from opswap.finding import Origin, line_text

from .call import Call
from .formats import Format
from .measured import LOSES, MEASURED_WITH
from .operators import CONVERTERS

__all__ = ["inside_hint", "loss_hint", "one_pixel_hint", "refused_hint", "undone_hint", "weight_hint"]

_LAST = "memory_format=torch.channels_last"
_SWAP = "opswap.swap(model) replaces it (rule {rule}); by hand: {call}"

# Operators of torch that return contiguous images, and what to write instead.
_OPERATORS: Mapping[str, str] = {
    "aten.max_pool3d_with_indices": _SWAP.format(
        rule="max_pool3d", call="opswap.nn.Pool3dAsPool2d or opswap.functional.max_pool3d"
    ),
    "aten.avg_pool3d": _SWAP.format(rule="avg_pool3d", call="opswap.functional.avg_pool3d"),
    "aten.index": "index channels with x.index_select(1, index), which opswap.swap(model) replaces (rule "
    "channel_permutation); slices such as x[:, :8] keep the format",
    "aten.index_select": _SWAP.format(
        rule="channel_permutation", call="opswap.functional.channel_permutation"
    ),
    "aten._softmax": "move the channels last for this call: "
    "F.softmax(x.permute(0, 2, 3, 1), -1).permute(0, 3, 1, 2) for dim=1",
    "aten._log_softmax": "move the channels last for this call: "
    "F.log_softmax(x.permute(0, 2, 3, 1), -1).permute(0, 3, 1, 2) for dim=1; "
    "F.cross_entropy accepts the (N * H * W, C) logits",
    "aten.native_layer_norm": "over channels, normalise x.permute(0, 2, 3, 1) over its last dimension and permute "
    "back, or use GroupNorm(1, channels) for all of (C, H, W)",
    "aten.masked_fill": "torch.where(mask, value, x) keeps the format",
    "aten.repeat": "torch.cat([x] * n, dim) keeps the format; expand copies nothing",
    "aten.grid_sampler_2d": f"convert its result once, .contiguous({_LAST})",
    "aten.upsample_bicubic2d": "mode='bilinear' keeps the format in both directions",
    "aten.upsample_bicubic2d_backward": "mode='bilinear' keeps the format in the backward too",
    "aten.bmm": "keep (N, H * W, C): x.flatten(2).transpose(1, 2) and back by .transpose(1, 2).unflatten(2, (h, w)) "
    "are views of a channels_last image",
}

# A view that returns to (N, C, H, W), and its copy.
_PERMUTED_COPY = re.compile(r"\.(permute|transpose|movedim)\([^()]*\)\.contiguous\(\)")

_MASKED = "keep all elements, torch.where(mask, x, 0): the size is then fixed, and the format kept in both directions"

# Operators of a backward that has another name than the forward.
_BACKWARDS: Mapping[str, str] = {
    "aten.index_put": "aten.index",
    "aten.index_add": "aten.index_select",
    "aten.scatter_add": "aten.gather",
    "aten._softmax_backward_data": "aten._softmax",
    "aten._log_softmax_backward_data": "aten._log_softmax",
    "aten.max_pool3d_with_indices_backward": "aten.max_pool3d_with_indices",
}


def loss_hint(call: Call, origin: Origin) -> str:
    """What keeps the format at an operator that loses it."""
    if call.name in CONVERTERS:
        return _copy_hint(call, line_text(origin.file, origin.line), origin.phase == "backward")
    known = _MASKED if _selects_by_mask(call) else _known(call.name)
    apart = "" if known and origin.phase == "backward" else _operand_hint(call, origin)
    if apart:
        return apart
    missing = ""
    if call.name in LOSES:
        missing = f"torch has no channels_last kernel for {call.name} (measured with {MEASURED_WITH}); "
    if not known and origin.phase == "backward":
        return (
            f"{missing}if a backward of convolutions follows, convert the gradient once: "
            f"x.register_hook(lambda grad: grad.contiguous({_last(call)})) on the tensor x that this line reads"
        )
    return missing + (
        known or f"convert its result at once, .contiguous({_last(call)}), if convolutions follow"
    )


def _selects_by_mask(call: Call) -> bool:
    """x[mask], or its backward."""
    if call.name not in ("aten.index", "aten.index_put") or len(call.arguments) < 2:
        return False
    return any(isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) for i in call.arguments[1])


def _known(name: str) -> str:
    """The advice on an operator; that on a backward is the forward's."""
    return _OPERATORS.get(name) or _OPERATORS.get(_BACKWARDS.get(name, name.removesuffix("_backward")), "")


def _last(call: Call) -> str:
    volume = any(o.tensor.dim() == 5 for o in call.images(call.sources))
    return f"memory_format=torch.channels_last{'_3d' if volume else ''}"


def _operand_hint(call: Call, origin: Origin) -> str:
    """Two formats that meet: the first operand decides for arithmetic, all of them for cat."""
    images = call.images(call.sources)
    wrong = [o for o in images if o.format in (Format.CONTIGUOUS, Format.AMBIGUOUS)]
    if call.name in ("aten.cat", "aten.stack") and wrong and len(wrong) < len(images):
        place = images.index(wrong[0])
        return (
            f"input {place} of the cat, {tuple(wrong[0].tensor.shape)}, is {wrong[0].format.value} and makes the "
            f"result contiguous: give it .contiguous({_last(call)})"
        )
    if len(images) + len(call.parameters) < 2:
        return ""
    plain = [o.tensor for o in wrong if o.format is Format.CONTIGUOUS]
    plain += [p for p in call.parameters if p.is_contiguous()]
    if not plain:
        return ""
    if origin.phase == "backward":
        return (
            f"the gradient that arrives, {tuple(plain[0].shape)}, is contiguous: the backward of a mean or a sum "
            f"spreads numbers without a format; "
            f"y.register_hook(lambda grad: grad.contiguous({_last(call)})) on the tensor y "
            "that was reduced brings it back"
        )
    return (
        f"the operand {tuple(plain[0].shape)} is contiguous: convert it once with .to({_last(call)}), or make the "
        "channels_last tensor the first operand, which decides"
    )


def _copy_hint(call: Call, text: str, backward: bool) -> str:
    source = call.sources[0].tensor
    groups = _shuffle_groups(source, backward)
    if groups:
        return (
            "channel shuffle: opswap.swap(model) replaces it (rules channel_shuffle, cat_channel_shuffle, "
            f"cat_channel_shuffle_split); by hand: opswap.functional.channel_shuffle(x, {groups})"
        )
    if source.dim() in (4, 5) and _PERMUTED_COPY.search(text):
        return f"drop .contiguous(), or write .contiguous({_last(call)})"
    if source.dim() in (4, 5) and ("flatten" in text or "reshape" in text or "view" in text):
        return (
            "reshape copies here because (C, H, W) does not lie in that order in a channels_last tensor: for tokens "
            "(N, H * W, C) write x.permute(0, 2, 3, 1).flatten(1, 2), a view; before a Linear, pool to (N, C) first, "
            "or leave it and name the line in allow="
        )
    if "permute" in text or "transpose" in text or "rearrange" in text or source.dim() not in (4, 5):
        return (
            "the copy puts the channels away from the innermost place: keep them there, (N, H * W, C), and return "
            "with .transpose(1, 2).unflatten(2, (h, w)), a view in channels_last"
        )
    return f"drop .contiguous(), or write .contiguous({_last(call)})"


def _shuffle_groups(source: Tensor, backward: bool) -> int:
    """Groups of a channel shuffle whose transposed view (N, C / groups, groups, H, W) this is, 0 if the tensor is not
    such a view.

    The backward shuffles the gradient with the other factor of C: its view is (N, groups, C / groups, H, W).
    """
    if source.dim() < 4:
        return 0
    per_group, groups = source.shape[1:3]
    _, inner, outer, *_ = source.stride()
    if groups < 2 or per_group < 2 or (inner, outer) != (1, per_group):
        return 0
    return per_group if backward else groups


def one_pixel_hint(call: Call, backward: bool) -> str:
    """An operator that makes a whole image of one pixel, whose strides do not determine a format."""
    if backward and call.name == "aten.div":
        return (
            "the gradient of a mean over all pixels is spread over a contiguous image: "
            "opswap.functional.avg_pool2d(x, x.shape[2:]) in its place has the same values, as (N, C, 1, 1), and "
            "gradients in the format of x"
        )
    return (
        "its input holds one pixel per channel, whose strides carry no format, so torch returns a contiguous image: "
        f"add .contiguous({_last(call)}), or let an operator with a channels_last operand spread the pixel"
    )


def undone_hint(reader: str, origin: Origin | None = None) -> str:
    """A conversion without effect, of the operator at `origin`, and the operator that read its result."""
    if not reader:
        return "the tensor has this format already: drop the copy"
    if origin is not None and origin.phase == "backward" and reader == "aten.copy_":
        return "autograd copies the gradient of a slice that is written in place: write x = x + y in place of x += y"
    return f"drop it: {reader}, the next operator, brings the format back"


def weight_hint(name: str, weight: Tensor) -> str:
    """A convolution whose weight is contiguous while its input is not."""
    which = f"parameter {name}" if name else "its weight"
    target = "torch.channels_last" if weight.dim() == 4 else "torch.channels_last_3d"
    text = f"{which} {tuple(weight.shape)} is contiguous and copied in every call: model.to(memory_format={target})"
    if isinstance(weight, Parameter):
        return text
    return f"{text}; if the forward computes the weight, weight.contiguous(memory_format={target})"


def inside_hint(op: str) -> str:
    """An operator that converts its input."""
    known = _known(op)
    return f"{op} makes a contiguous copy of its input (measured with {MEASURED_WITH})" + (
        f"; {known}" if known else ""
    )


def refused_hint(op: str, error: Exception) -> str:
    """An operator that raised."""
    known = _known(op)
    if "view" in op:
        known = "write .reshape() for .view(), and keep channels last if it copies"
    message = str(error).splitlines()[0]
    return f"raised {type(error).__name__}: {message}" + (f"; {known}" if known else "")
