# SPDX-License-Identifier: MIT
"""Defects of torch itself that networks in channels_last meet, each tried in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

__all__ = ["DEFECTS", "Defect", "Outcome", "try_all"]

_SECONDS = 120  # of which nearly all is the import of torch
_WRONG = 3  # exit status, which Python and the shell do not use


@dataclass(frozen=True)
class Defect:
    """Stock code that torch computes wrongly, or that ends the process, on some CPUs.

    code: statements; `ours` and `right` hold what torch computes and what would be right, if the process lives.
    advice: how to keep away from it.
    """

    name: str
    code: str
    advice: str


@dataclass(frozen=True)
class Outcome:
    """What a defect did here: verdict is "right", "wrong result", "ended by signal N", or why there is none."""

    name: str
    verdict: str
    advice: str

    @property
    def is_right(self) -> bool:
        return self.verdict == "right"

    def __str__(self) -> str:
        return self.name if self.is_right else f"{self.name}: {self.verdict}; {self.advice}"


# Without a core file: these ends are expected.
_START = """
import resource
import sys
import torch
from torch import nn
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
torch.manual_seed(0)
nhwc = torch.channels_last
"""

_END = f"""
sys.exit(0 if torch.allclose(ours, right, 1e-3, 1e-3) else {_WRONG})
"""

# Several times: what is beyond the buffer is not always in use.
_STRIDED = """
for _ in range(10):
    conv = nn.Conv2d(3, 48, 1, stride=2)
    x, gradient = torch.randn(4, 3, 96, 96), torch.randn(4, 48, 48, 48)
    right = torch.autograd.grad(conv(x), conv.weight, gradient)[0]
    conv, x = conv.to(memory_format=nhwc), x.to(memory_format=nhwc).requires_grad_()
    ours = torch.autograd.grad(conv(x), (conv.weight, x), gradient.to(memory_format=nhwc))[0]
"""

_ONE_IMAGE = """
x, gradient = torch.randn(1, 4, 5, 6, requires_grad=True), torch.randn(1, 4, 5, 6)
norm = nn.InstanceNorm2d(4)
right = torch.autograd.grad(norm(x), x, gradient)[0]
ours = torch.autograd.grad(norm(x), x, gradient.to(memory_format=nhwc))[0]
"""

_FROZEN = """
x, gradient = torch.randn(2, 4, 5, 6), torch.randn(2, 4, 5, 6)
norm = nn.GroupNorm(2, 4)
right = torch.autograd.grad(norm(x), norm.weight, gradient)[0]
ours = torch.autograd.grad(norm(x.to(memory_format=nhwc)), norm.weight, gradient.to(memory_format=nhwc))[0]
"""

DEFECTS = (
    Defect(
        "backward of Conv2d(3, 48, 1, stride=2) in channels_last",
        _STRIDED,
        "swap the model, or make the input of this layer contiguous",
    ),
    Defect(
        "backward of InstanceNorm for one image, with a gradient in channels_last",
        _ONE_IMAGE,
        "swap the model, or call .contiguous() on the output of this layer",
    ),
    Defect(
        "backward of GroupNorm in channels_last, behind frozen layers",
        _FROZEN,
        "swap the model, or make the input of this layer contiguous",
    ),
)


def try_all(defects: Sequence[Defect] = DEFECTS) -> list[Outcome]:
    """Run every defect in a process of its own, without opswap. This process goes on, whatever happens there."""
    with ThreadPoolExecutor(len(defects)) as pool:
        verdicts = pool.map(_verdict, [d.code for d in defects])
        return [Outcome(d.name, v, d.advice) for d, v in zip(defects, verdicts, strict=True)]


def _verdict(code: str) -> str:
    command = [sys.executable, "-c", _START + code + _END]
    try:
        status = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False).returncode
    except subprocess.TimeoutExpired:
        return f"no answer in {_SECONDS} seconds"
    except OSError as error:
        return f"not tried: {error}"
    if status < 0:
        return f"ended by signal {-status}"
    return {0: "right", _WRONG: "wrong result"}.get(status, f"not tried: exit status {status}")
