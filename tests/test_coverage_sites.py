# SPDX-License-Identifier: MIT
"""benchmarks/sites.py counts the operators that torch runs, and benchmarks/coverage.py makes a table of them."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opswap
from opswap.models import LPRNet, ShuffleNetV2

BENCHMARKS = str(Path(__file__).parent.parent / "benchmarks")
sys.path.insert(0, BENCHMARKS)
import coverage  # noqa: E402
import networks  # noqa: E402
from sites import KINDS, count_sites  # noqa: E402

sys.path.remove(BENCHMARKS)


class OneOfEach(nn.Module):
    """Every kind of operator once, and beside it what is not to be counted."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = nn.Conv2d(4, 8, 1), nn.Conv2d(8, 8, 3, groups=8)
        self.strips, self.whole = nn.Conv2d(8, 8, 1, groups=2), nn.Conv2d(8, 8, 3)
        self.norm, self.names = nn.BatchNorm2d(8), nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.norm(self.wide(x)))
        x = torch.relu(self.whole(self.strips(self.deep(x))))
        x = F.dropout(F.dropout(F.max_pool2d(x, 2), 0.5), 0.0)
        n, c, h, w = x.shape
        x = x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        x = x.view(n, 2, c // 2, h, w).transpose(3, 4).reshape(n, c, w, h)
        return torch.sigmoid(self.names(x.mean((2, 3))))


def test_each_kind_is_counted_once() -> None:
    model, x = OneOfEach().train(), torch.randn(3, 4, 12, 12)
    assert count_sites(lambda: model(x)) == dict.fromkeys(KINDS, 1)


@pytest.mark.parametrize(
    "shuffle",
    [
        lambda x: F.channel_shuffle(x, 4),
        lambda x: x.reshape(2, 4, 2, 5, 5).permute(0, 2, 1, 3, 4).flatten(1, 2),
        lambda x: x.reshape(2, 4, 2, 5, 5).swapaxes(2, 1).reshape(2, 8, 5, 5),
    ],
)
def test_spellings_of_a_shuffle(shuffle: object) -> None:
    x = torch.randn(2, 8, 5, 5)
    assert count_sites(lambda: shuffle(x)) == {"channel shuffle": 1}


@pytest.mark.usefixtures("every_rule_applies")
@pytest.mark.parametrize(
    ("model", "size"), [(ShuffleNetV2((1, 1, 1), (8, 16, 32, 64, 32), 5), 64), (LPRNet(5), (24, 94))]
)
def test_what_swap_reports_is_what_torch_no_longer_runs(
    model: nn.Module, size: int | tuple[int, int]
) -> None:
    x = torch.randn(2, 3, *(size if isinstance(size, tuple) else (size, size)))
    before = count_sites(lambda: model(x))
    opswap.swap(model)
    after = count_sites(lambda: model(x))
    gone = {kind for kind in before if not after[kind]}
    assert gone >= {"batch norm", "activation after it", "pool"}
    assert before["channel shuffle"] == (3 if size == 64 else 0) and not after["channel shuffle"]


# A network, the side of its images, and how often a forward runs each of `KINDS`.
_NETWORKS: dict[str, tuple[Callable[[], nn.Module], int | tuple[int, int], tuple[int, ...]]] = {
    "ShuffleNetV2": (ShuffleNetV2, 64, (56, 37, 1, 0, 16, 36, 19)),
    "LPRNet": (lambda: LPRNet(68), (24, 94), (6, 6, 6, 2, 0, 7, 0)),
}


@pytest.mark.usefixtures("every_rule_applies")
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", _NETWORKS)
def test_no_site_of_the_networks_is_lost(name: str, memory_format: torch.memory_format) -> None:
    """In channels_last all but one pool of LPRNet, else all but the convolutions, for which there are no kernels."""
    make, size, numbers = _NETWORKS[name]
    sites = dict(zip(KINDS, numbers, strict=True))
    model = make().train().to(memory_format=memory_format)
    x = torch.randn(2, 3, *(size if isinstance(size, tuple) else (size, size)))
    x = x.contiguous(memory_format=memory_format)
    if memory_format is torch.contiguous_format:  # torch's MaxPool3d refuses channels_last
        assert count_sites(lambda: model(x)) == {kind: number for kind, number in sites.items() if number}
    opswap.swap(model)
    left = count_sites(lambda: model(x))
    for kind in KINDS[:5]:
        few = name == "LPRNet" and kind == "pool" and memory_format is torch.channels_last
        assert left[kind] == int(few), kind
    vectors = memory_format is torch.channels_last and opswap.isa.current() in ("avx2", "avx512")
    for kind in KINDS[5:]:
        assert left[kind] == 0 if vectors else left[kind] <= sites[kind], kind


def test_the_table() -> None:
    row = coverage.Row(
        "lib", "net", "net_050", sites={"pool": 3, "dropout": 1}, left={"pool": 1}, kept={"a | b": 1}
    )
    raised = coverage.Row("lib", "other", "other", error="raises ValueError: no")
    head, _, first, second = coverage.table([row, raised])
    assert head.count("|") == second.count("|") == first.replace("\\|", "").count("|")
    assert "2 of 3" in first and "75%" in first and "no" in second
    assert coverage.summary([row, raised])[0].startswith("1 networks, 1 not counted; of all operators 75%")


def test_what_is_better_left_to_torch_is_counted_apart() -> None:
    why = [
        coverage.Why("pool", "avg_pool2d", "torch is faster on fewer than 4 elements: the input has 3", 2),
        coverage.Why("dropout", "dropout", "no kernel for AlphaDropout", 1),
    ]
    faster, untold = coverage.sort_out({"pool": 3, "dropout": 1}, why)
    assert faster == {"pool": 2} and untold == {"pool": 1}
    assert coverage.sort_out({"pool": 3}, [*why, coverage.Why("", "", "calls hasattr()", 1)])[1] == {}
    row = coverage.Row("lib", "net", "net", sites={"pool": 5}, left={"pool": 3}, faster=faster, untold=untold)
    row.kept = {"calls type() at /home/me/site-packages/lib/models/net.py:3": 1}
    assert "1: calls type() at lib/models/net.py:3" in coverage.table([row])[2]
    assert coverage._share_of_rest(row) == "67%" and "1 of pool without a reason" in coverage.table([row])[2]


def test_reasons_of_a_forward() -> None:
    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn, self.drop = nn.BatchNorm2d(8), nn.Dropout2d()

        def forward(self, x: Tensor) -> Tensor:
            y = self.bn(x)
            return self.drop(torch.relu(y) + y)

    found = coverage.reasons(opswap.swap(Gate()), (torch.randn(2, 8, 4, 4),))
    kinds = ("batch norm", "activation after it", "dropout")
    assert {(w.kind, w.is_faster) for w in found} == {(kind, True) for kind in kinds}


def test_activations_that_run_once_have_a_reason() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn = nn.BatchNorm2d(8)
            self.first, self.last = (nn.Sequential(nn.ReLU(), nn.Conv2d(8, 8, 3)) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            x = self.bn(x)
            return self.first(x) + self.last(x) + x.mean()

    x = torch.randn(8, 8, 16, 16)
    model = opswap.swap(Branches())
    left = count_sites(lambda: model(x))
    assert left["activation after it"] == 1
    assert coverage.sort_out(left, coverage.reasons(model, (x,)))[1] == {}


def test_reasons_of_a_folded_convolution() -> None:
    """Its activation is left to torch in calls that take another path, and only in these."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn = nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)

        def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
            return torch.relu(self.bn(self.conv(x))) + (x if shortcut is None else shortcut)

    x = torch.randn(2, 32, 8, 8)
    model = opswap.swap(Block(), memory_format=torch.channels_last)
    assert "conv_folded" in {s.rule for s in opswap.report(model).swapped}
    for arguments in ((x,), (x, x)):
        left = count_sites(lambda given=arguments: model(*given))["activation after it"]
        why = [w for w in coverage.reasons(model, arguments) if w.kind == "activation after it"]
        assert left == len(why) == len(arguments) - 1
        assert all("shortcut" in w.reason for w in why)


@pytest.mark.parametrize("chain", [False, True])
def test_an_activation_of_an_activation_is_none_behind_a_norm(chain: bool) -> None:
    """As where the stem of Xception ends with one, and its first block begins with another one."""

    def part() -> list[nn.Module]:
        conv = nn.Conv2d(32, 32, 1, bias=False) if chain else nn.Identity()
        return [conv, nn.BatchNorm2d(32), nn.ReLU()]

    layers = [*part(), *part()]
    stock = nn.Sequential(*layers, nn.LeakyReLU(0.5)).to(memory_format=torch.channels_last)
    x = torch.randn(4, 32, 28, 28).contiguous(memory_format=torch.channels_last)
    assert count_sites(lambda: stock(x))["activation after it"] == 2
    model = opswap.swap(copy.deepcopy(stock))
    if chain and opswap.isa.current() in ("avx2", "avx512"):
        assert "Chain" in model(x).grad_fn.next_functions[0][0].name()
    assert not count_sites(lambda: model(x))["activation after it"]
    left = nn.Sequential(opswap.swap(nn.Sequential(*layers[:5])), nn.ReLU())
    assert count_sites(lambda: left(x))["activation after it"] == 1


def test_the_page_names_what_was_not_run() -> None:
    row = coverage.Row("timm", "resnet", "resnet10t", sites={"pool": 3}, left={"pool": 1})
    text = "\n".join(coverage.page([row]))
    assert (
        "resnet10t" not in text.partition("Not run:")[2]
        and "mobilenetv2_050" in text.partition("Not run:")[2]
    )
    assert "1 networks." in text and "pool: 2 of 3" in text


def test_rows_of_fewer_images_have_a_table_of_their_own() -> None:
    rows = [
        coverage.Row("timm", "resnet", "resnet10t", size=96, sites={"pool": 4}, left={"pool": 3}),
        coverage.Row("timm", "resnet", "resnet10t", 224, 2, sites={"pool": 4}, left={"pool": 1}),
    ]
    first, _, second = "\n".join(coverage.page(rows)).partition("## 2 images of 224 x 224 pixels")
    assert "pool: 1 of 4" in first and "3 of 4" not in first.partition("| library")[2] and "3 of 4" in second


def test_a_network_of_fewer_images_alone_is_counted() -> None:
    row = coverage.Row("timm", "resnet", "resnet10t", 224, 2, sites={"pool": 4}, left={"pool": 1})
    text = "\n".join(coverage.page([row]))
    assert "pool: 3 of 4" in text and "resnet10t" not in text.partition("Not run:")[2]


def test_the_networks_are_listed_once_a_family() -> None:
    listed = networks.listed()
    assert set(listed) >= {"timm", "torchvision", "transformers"}
    names = [name for of_library in listed.values() for name in of_library.values()]
    assert len(names) > 150 and all(names)
