# SPDX-License-Identifier: MIT
"""Bad input to batch normalisation: torch's kinds of error, the values in the text, and nothing written."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as T
from torch import Tensor

from opswap import _core
from opswap import functional as F
from step import assert_same_error


def call(function: Any, x: Any, **changes: Any) -> Tensor:
    arguments: dict[str, Any] = {"running_mean": torch.zeros(3), "running_var": torch.ones(3)}
    return function(x, **(arguments | changes))


X = torch.randn(4, 3, 5, 5)

# input, changed arguments, what the text must say
BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "one value": (torch.randn(1, 3, 1, 1), {"training": True}, r"more than 1 value .*\[1, 3, 1, 1\]"),
    "one value 2d": (torch.randn(1, 3), {"training": True}, r"more than 1 value .*\[1, 3\]"),
    "no mean": (X, {"running_mean": None}, "running_mean must be defined"),
    "no var": (X, {"running_var": None}, "running_var must be defined"),
    "nothing": (X, {"running_mean": None, "running_var": None}, "running_mean must be defined"),
    "half": (X, {"running_var": None, "training": True}, "both be None"),
    "mean size": (X, {"running_mean": torch.zeros(4)}, "running_mean should contain 3 elements not 4"),
    "var size": (
        X,
        {"running_var": torch.zeros(2), "training": True},
        "running_var should contain 3 .* not 2",
    ),
    "weight size": (X, {"weight": torch.ones(4)}, "weight should contain 3 elements not 4"),
    "bias size": (X, {"bias": torch.ones(5), "training": True}, "bias should contain 3 elements not 5"),
    "weight dtype": (X, {"weight": torch.ones(3).double()}, "weight torch.float64"),
    "double with float": (X.double(), {"weight": torch.ones(3)}, "torch.float32"),
    "half running": (X, {"running_mean": torch.zeros(3).half()}, "torch.float16"),
    "bf16 with f16": (X.bfloat16(), {"weight": torch.ones(3).half()}, "torch.float16"),
    "mixed mixed": (X.bfloat16(), {"weight": torch.ones(3).bfloat16()}, "torch.bfloat16"),
    "int": (X.int(), {}, "not implemented for .*[iI]nt"),
    "bool": (X.bool(), {}, "not implemented for .*[bB]ool"),
    "complex": (X.cfloat(), {}, "not implemented for .*[cC]omplex"),
    "1d": (torch.randn(3), {}, r"\(3,\)|running_mean"),
    "eps": (X, {"training": True, "eps": 0.0}, "eps must be positive.* 0"),
    "negative eps": (X, {"training": True, "eps": -1.0}, "eps must be positive.* -1"),
    "negative eps in evaluation": (X, {"eps": -1.0}, "eps must be .* -1"),
    "momentum": (X, {"training": True, "momentum": None}, "'momentum'.* float, not NoneType"),
    "eps kind": (X, {"eps": "a"}, "str"),
    "training kind": (X, {"training": "yes"}, "'training'.* bool, not str"),
    "no tensor": ([1.0], {}, "'input'.* Tensor, not list"),
    "weight list": (X, {"weight": [1.0]}, "'weight'.* Tensor, not list"),
    "gradient of running": (X, {"running_mean": torch.zeros(3, requires_grad=True)}, "running_mean"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("graph", [False, True])
def test_errors_are_torchs(name: str, graph: bool) -> None:
    x, changes, text = BAD[name]
    if graph:
        changes = {"weight": torch.ones(3, requires_grad=True)} | changes
    running = torch.zeros(3), torch.ones(3)
    ours = {"running_mean": running[0], "running_var": running[1]} | changes
    error = assert_same_error(
        lambda: call(F.batch_norm_relu, x, **ours), lambda: call(T.batch_norm, x, **changes), 0
    )
    assert re.search(text, str(error))
    assert running[0].eq(0).all() and running[1].eq(1).all()


@pytest.mark.parametrize("activation", ["selu", "RELU", 3, ["relu"]])
def test_unknown_activations(activation: Any) -> None:
    with pytest.raises(ValueError, match=r"one of .*relu6.* got"):
        call(F.batch_norm_act, X, activation=activation)


FORWARD = {
    "training": False,
    "momentum": 0.1,
    "eps": 1e-5,
    "activation": "relu",
    "input": X,
    "running_mean": torch.zeros(3),
    "running_var": torch.ones(3),
    "weight": None,
    "bias": None,
    "result": 2,
    "graph": False,
}
BACKWARD = {
    "training": False,
    "eps": 1e-5,
    "activation": None,
    "needed": (True, True, True),
    "grad_output": torch.randn(4, 3, 5, 5),
    "input": X,
    "statistics": torch.ones(2, 3).double(),
    "weight": None,
    "bias": None,
    "plain": False,
}


def test_the_extension_checks_by_itself() -> None:
    def forward(**changes: Any) -> Any:
        return _core.batch_norm(*(FORWARD | changes).values())

    output, statistics = forward()
    assert output.shape == X.shape and statistics.shape == (2, 3)
    expanded, _ = forward(running_mean=torch.zeros(1).expand(3), running_var=torch.ones(1).expand(3))
    assert torch.equal(expanded, output)  # read, not written
    for error, changes in (
        (TypeError, {"input": None}),
        (TypeError, {"weight": 3}),
        (TypeError, {"training": 1}),
        (TypeError, {"momentum": "a"}),
        (TypeError, {"momentum": None, "result": 0}),
        (TypeError, {"result": None}),
        (ValueError, {"result": 3}),
        (ValueError, {"activation": "selu"}),
        (ValueError, {"training": True, "eps": 0.0}),
        (RuntimeError, {"running_mean": torch.zeros(1).expand(3), "training": True}),
        (RuntimeError, {"running_var": torch.ones(1).expand(3), "training": True}),
        (RuntimeError, {"weight": FORWARD["running_mean"], "training": True}),
        (RuntimeError, {"running_mean": torch.zeros(3, 1)}),
        (RuntimeError, {"running_mean": None}),
        (RuntimeError, {"running_mean": None, "training": True}),
        (RuntimeError, {"running_mean": torch.zeros(3, requires_grad=True)}),
        (RuntimeError, {"weight": torch.zeros(3, 2)}),
        (RuntimeError, {"input": X[:1, :, :1, :1], "training": True}),
        (NotImplementedError, {"input": X.int()}),
    ):
        with pytest.raises(error):
            forward(**changes)
    with pytest.raises(TypeError, match="11 arguments, got 2"):
        _core.batch_norm(X, X)


def test_the_extension_leaves_what_is_not_ordinary() -> None:
    class Wrapped(Tensor):
        pass

    for result in (0, 1):
        for changes in (
            {"input": X.as_subclass(Wrapped)},
            {"weight": torch.view_as_complex(torch.ones(3, 2)).conj().imag},
            {"input": X.permute(2, 1, 0, 3)},
        ):
            before = X.clone()
            made = _core.batch_norm(*(FORWARD | changes | {"result": result, "graph": True}).values())
            assert made is NotImplemented and torch.equal(X, before)
    changes = {"weight": torch.ones(3, requires_grad=True), "result": 0}
    assert _core.batch_norm(*(FORWARD | changes | {"graph": True}).values()) is False
    assert isinstance(_core.batch_norm(*(FORWARD | changes).values()), Tensor)


def test_the_extension_checks_a_backward_by_itself() -> None:
    def backward(**changes: Any) -> Any:
        return _core.batch_norm_backward(*(BACKWARD | changes).values())

    gradient, *none = backward()
    assert gradient.shape == X.shape and none == [None, None]
    for error, changes in (
        (TypeError, {"grad_output": None}),
        (TypeError, {"needed": (True, True)}),
        (TypeError, {"needed": [True, True, True]}),
        (TypeError, {"statistics": None}),
        (RuntimeError, {"grad_output": torch.empty(4, 3, 5, 4)}),
        (RuntimeError, {"grad_output": X.double()}),
        (RuntimeError, {"statistics": torch.empty(2, 3)}),
        (RuntimeError, {"statistics": torch.empty(2, 4).double()}),
        (RuntimeError, {"weight": torch.ones(4)}),
    ):
        with pytest.raises(error):
            backward(**changes)
    with pytest.raises(TypeError, match="10 arguments, got 1"):
        _core.batch_norm_backward(X)


def test_a_gradient_of_another_size() -> None:
    statistics = torch.ones(2, 3).double()
    options = (statistics, None, None, True, 1e-5, None, [True, False, False])
    with pytest.raises(RuntimeError, match=r"\(4, 3, 5, 4\).*\(4, 3, 5, 5\)"):
        torch.ops.opswap.batch_norm_act_backward(torch.randn(4, 3, 5, 4), X, *options)
