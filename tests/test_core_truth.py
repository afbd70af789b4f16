# SPDX-License-Identifier: MIT
"""An object whose __bool__ raises, in the place of every bool that the extension takes."""

from __future__ import annotations

from surviving import survive

UNTRUE = """
class NoTruthError(Exception):
    pass

class Untrue:
    def __bool__(self):
        raise NoTruthError

bad = Untrue()
"""


def test_what_is_asked_raises() -> None:
    survive(
        UNTRUE
        + """
x = torch.randn(1, 8, 4, 4)
calls = {
    "reuse": lambda: _core.memory_reuse(bad),
    "flush": lambda: _core.memory_flush(bad),
    "format": lambda: _core.new_shuffled((x,), 2, (8,), None, bad),
    "format of sections": lambda: _core.new_shuffled((x,), 2, (4, 4), (True, True), bad),
    "first section": lambda: _core.new_shuffled((x,), 2, (4, 4), (bad, True), False),
    "last section": lambda: _core.new_shuffled((x,), 2, (4, 4), (True, bad), False),
}
for name, call in calls.items():
    for _ in range(3):
        error = attempt(name, call)
        assert type(error) is NoTruthError, name
assert _core.new_shuffled((x,), 2, (4, 4), (True, True), False)[0].shape == (1, 4, 4, 4)
"""
    )


def test_what_is_compared_is_not_asked() -> None:
    """Those that are True alone: any other object is as False, no bool, or left to torch."""
    survive(
        UNTRUE
        + """
x, v = torch.randn(1, 8, 4, 4), torch.randn(1, 8, 2, 4, 4)
g, w = torch.randn(1, 8, 2, 2), torch.randn(8, 8, 1, 1)
last, taps = x.contiguous(memory_format=torch.channels_last), torch.randn(8, 1, 3, 3)
window = (2, 2), (2, 2), (0, 0)
offsets = torch.zeros(1, 8, 2, 2, dtype=torch.uint8)
index = torch.zeros(1, 8, 2, 2, dtype=torch.int32)
norm = lambda train, graph: _core.batch_norm(train, 0.1, 1e-5, None, x, torch.zeros(8), torch.ones(8), None, None, 0,
                                             graph)
statistics = torch.ones(2, 8, dtype=torch.float64)
calls = {
    "max ceil": lambda b: _core.max_pool(x, *window, (1, 1), b, 1, False),
    "max offsets": lambda b: _core.max_pool(x, *window, (1, 1), False, 1, b),
    "max backward": lambda b: _core.max_pool_backward(g, offsets, (1, 8, 4, 4), *window, (1, 1), 1, b),
    "avg ceil": lambda b: _core.avg_pool(x, *window, b, True, None, 1),
    "avg pad": lambda b: _core.avg_pool(x, *window, False, b, None, 1),
    "avg backward ceil": lambda b: _core.avg_pool_backward(g, (1, 8, 4, 4), *window, b, True, None, 1, False),
    "avg backward pad": lambda b: _core.avg_pool_backward(g, (1, 8, 4, 4), *window, False, b, None, 1, False),
    "avg backward last": lambda b: _core.avg_pool_backward(g, (1, 8, 4, 4), *window, False, True, None, 1, b),
    "adaptive": lambda b: _core.adaptive_max_pool(x, (1, 8, 2, 2), b),
    "adaptive backward": lambda b: _core.adaptive_max_pool_backward(g, index, (1, 8, 4, 4), b),
    "plain max volumes": lambda b: _core.plain_max_pool(b, x, 2, 2, 0, 1, False, False),
    "plain max ceil": lambda b: _core.plain_max_pool(False, x, 2, 2, 0, 1, b, False),
    "plain max trains": lambda b: _core.plain_max_pool(False, x, 2, 2, 0, 1, False, b),
    "plain avg volumes": lambda b: _core.plain_avg_pool(b, v, 2, 2, 0, False, True, None, False),
    "plain avg ceil": lambda b: _core.plain_avg_pool(True, v, 2, 2, 0, b, True, None, False),
    "plain avg pad": lambda b: _core.plain_avg_pool(True, v, 2, 2, 0, False, b, None, False),
    "plain avg trains": lambda b: _core.plain_avg_pool(True, v, 2, 2, 0, False, True, None, b),
    "plain adaptive trains": lambda b: _core.plain_adaptive_max_pool(2, x, 2, b),
    "plain amax keepdim": lambda b: _core.plain_amax(b, x, False),
    "plain amax trains": lambda b: _core.plain_amax(False, x, b),
    "describe": lambda b: _core.describe_shuffle((x,), 2, None, b),
    "norm trains": lambda b: norm(b, False),
    "norm graph": lambda b: norm(True, b),
    "norm backward trains": lambda b: _core.batch_norm_backward(
        b, 1e-5, None, (True,) * 3, x, x, statistics, None, None, False),
    "norm backward plain": lambda b: _core.batch_norm_backward(
        True, 1e-5, None, (True,) * 3, x, x, statistics, None, None, b),
}
for i in range(3):
    mask = lambda b: [b if i == j else True for j in range(3)]
    calls[f"norm backward {i}"] = lambda b, mask=mask: _core.batch_norm_backward(
        True, 1e-5, None, tuple(mask(b)), x, x, statistics, None, None, False)
    calls[f"linear {i}"] = lambda b, mask=mask: _core.grouped_linear_backward(
        torch.ones(2, 3, 4), torch.ones(2, 3, 5), torch.ones(3, 4, 5), None, *mask(b))
    calls[f"plain conv {i}"] = lambda b, mask=mask: _core.plain_conv_backward(
        last, last, w, [1, 1], [0, 0], [1, 1], *mask(b))
    calls[f"pointwise {i}"] = lambda b, mask=mask: _core.plain_pointwise_backward(last, last, w, 1, *mask(b))
    calls[f"depthwise {i}"] = lambda b, mask=mask: _core.depthwise_backward(
        last, last, taps, (1, 1), (1, 1), 1, *mask(b))
    calls[f"plain depthwise {i}"] = lambda b, mask=mask: _core.plain_depthwise_backward(
        last, last, taps, (1, 1), (1, 1), 1, *mask(b))

def kind(result):
    if isinstance(result, (tuple, list)):
        return tuple(map(kind, result))
    return (result.shape, result.stride()) if isinstance(result, torch.Tensor) else type(result)

for name, call in calls.items():
    found, expected = attempt(name, lambda: call(bad)), attempt(name, lambda: call(False))
    declined = type(found) is TypeError or (name.startswith("plain") and found is NotImplemented)
    assert declined or kind(found) == kind(expected), (name, found, expected)
"""
    )
