# SPDX-License-Identifier: MIT
"""swap on pools: torch's modules, the functions in a forward, and LPRNet, which trains in both formats after it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

import opswap
from counted import kernels
from opswap.models import lprnet
from opswap.swap.rules import DEFAULT, OPTIONAL
from spellings.guards import Only
from step import assert_equal, outputs_and_gradients
from twins import twins

pytestmark = pytest.mark.usefixtures("every_rule_applies")

# Every rule, the optional ones too.
swap = partial(opswap.swap, rules=OPTIONAL + DEFAULT)
scan = partial(opswap.scan, rules=OPTIONAL + DEFAULT)

VOLUME, IMAGE = (3, 8, 9, 10), (2, 6, 9, 10)

MODULES = [
    (nn.MaxPool2d(3, 2, 1), "max_pool2d", IMAGE),
    (nn.MaxPool2d((2, 3), 2, dilation=(1, 2), ceil_mode=True), "max_pool2d", IMAGE[1:]),
    (nn.MaxPool3d((1, 3, 3), (2, 1, 2)), "max_pool3d", VOLUME),
    (nn.MaxPool3d(2, padding=1), "max_pool3d", (2, *VOLUME)),
    (nn.AvgPool3d((1, 3, 3), (2, 1, 2)), "avg_pool3d", VOLUME),
    (nn.AvgPool3d(2, 1, 1, count_include_pad=False), "avg_pool3d", (2, *VOLUME)),
    (nn.AvgPool2d(3, 2, 1), "avg_pool2d", IMAGE),
    (nn.AdaptiveMaxPool1d(1), "adaptive_max_pool1d", IMAGE[1:]),
    (nn.AdaptiveMaxPool3d(1), "adaptive_max_pool3d", (2, *VOLUME)),
    (nn.AdaptiveMaxPool3d((None, 2, 3)), "adaptive_max_pool3d", VOLUME),
    (nn.AdaptiveMaxPool2d((3, 2)), "adaptive_max_pool2d", IMAGE),
    (nn.AdaptiveMaxPool2d(1), "adaptive_max_pool2d", IMAGE),
    (nn.AdaptiveMaxPool2d((1, 1)), "adaptive_max_pool2d", IMAGE[1:]),
]

FUNCTIONS: list[tuple[str, Callable[[Tensor], Tensor], str]] = [
    ("max_pool2d", lambda x: F.max_pool2d(x, 3, stride=2, padding=1), "max_pool2d"),
    ("max_pool2d of torch", lambda x: torch.max_pool2d(x, [2, 3], [1, 2]), "max_pool2d"),
    (
        "max_pool2d by size",
        lambda x: F.max_pool2d(x, kernel_size=x.size()[2:], stride=1, padding=1),
        "max_pool2d",
    ),
    ("max_pool2d by sizes", lambda x: F.max_pool2d(x, (x.shape[2], 2)), "max_pool2d"),
    ("max_pool2d with indices", lambda x: F.max_pool2d(x, 2, return_indices=True)[0], "max_pool2d"),
    ("max_pool2d_with_indices", lambda x: F.max_pool2d_with_indices(x, 2)[0], "max_pool2d"),
    ("max_pool3d", lambda x: F.max_pool3d(x, (1, 3, 3), (2, 1, 2)), "max_pool3d"),
    ("max_pool3d of torch", lambda x: torch.max_pool3d(x, (1, 3, 3), (2, 1, 2)), "max_pool3d"),
    ("avg_pool3d", lambda x: F.avg_pool3d(x, (1, 3, 3), (2, 1, 2), divisor_override=5), "avg_pool3d"),
    ("avg_pool2d", lambda x: F.avg_pool2d(x, 2, ceil_mode=True), "avg_pool2d"),
    ("adaptive_max_pool1d", lambda x: F.adaptive_max_pool1d(x.flatten(2), 3), "adaptive_max_pool1d"),
    ("adaptive_max_pool3d", lambda x: F.adaptive_max_pool3d(x, (1, 2, 3)), "adaptive_max_pool3d"),
    ("adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, 1), "adaptive_max_pool2d"),
    (
        "adaptive_max_pool2d with indices",
        lambda x: F.adaptive_max_pool2d(x, (1, 1), return_indices=True)[0],
        "adaptive_max_pool2d",
    ),
    ("torch.amax", lambda x: torch.amax(x, (2, 3)), "amax"),
    ("amax", lambda x: x.amax((-1, -2), keepdim=True), "amax"),
    ("amax by names", lambda x: x.amax(dim=[3, 2], keepdim=False), "amax"),
]

KEPT: list[tuple[str, Callable[[Tensor], Tensor], str]] = [
    ("max_pool2d of float", lambda x: F.max_pool2d(x, 2.0), "argument of type float"),
    ("amax into a tensor", lambda x: torch.amax(x, (2, 3), out=x), "arguments are not replaced"),
    ("amax of rows", lambda x: x.amax(3), ""),
    ("amax of channels", lambda x: x.amax((1, 2)), ""),
    ("amax of everything", lambda x: x.amax(), ""),
    ("max", lambda x: x.max(3)[0].max(2)[0], ""),
]


class PublishedBlock(nn.Module):
    def __init__(self, ch_in: int, ch_out: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(ch_in, ch_out // 4, kernel_size=1),
            nn.ReLU(),
            nn.Conv2d(ch_out // 4, ch_out // 4, kernel_size=(3, 1), padding=(1, 0)),
            nn.ReLU(),
            nn.Conv2d(ch_out // 4, ch_out // 4, kernel_size=(1, 3), padding=(0, 1)),
            nn.ReLU(),
            nn.Conv2d(ch_out // 4, ch_out, kernel_size=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


class PublishedLPRNet(nn.Module):
    """LPRNet as it is spelled in the wild: its forward makes modules, so that it has no graph."""

    def __init__(self, class_num: int) -> None:
        super().__init__()
        self.class_num = class_num
        self.backbone = nn.Sequential(
            nn.Conv2d(in_channels=3, out_channels=64, kernel_size=3, stride=1),
            nn.BatchNorm2d(num_features=64),
            nn.ReLU(),
            nn.MaxPool3d(kernel_size=(1, 3, 3), stride=(1, 1, 1)),
            PublishedBlock(ch_in=64, ch_out=128),
            nn.BatchNorm2d(num_features=128),
            nn.ReLU(),
            nn.MaxPool3d(kernel_size=(1, 3, 3), stride=(2, 1, 2)),
            PublishedBlock(ch_in=64, ch_out=256),
            nn.BatchNorm2d(num_features=256),
            nn.ReLU(),
            PublishedBlock(ch_in=256, ch_out=256),
            nn.BatchNorm2d(num_features=256),
            nn.ReLU(),
            nn.MaxPool3d(kernel_size=(1, 3, 3), stride=(4, 1, 2)),
            nn.Dropout(0.0),
            nn.Conv2d(in_channels=64, out_channels=256, kernel_size=(1, 4), stride=1),
            nn.BatchNorm2d(num_features=256),
            nn.ReLU(),
            nn.Dropout(0.0),
            nn.Conv2d(in_channels=256, out_channels=class_num, kernel_size=(13, 1), stride=1),
            nn.BatchNorm2d(num_features=class_num),
            nn.ReLU(),
        )
        self.container = nn.Sequential(nn.Conv2d(448 + class_num, class_num, kernel_size=(1, 1)))

    def forward(self, x: Tensor) -> Tensor:
        keep_features = []
        for i, layer in enumerate(self.backbone.children()):
            x = layer(x)
            if i in [2, 6, 13, 22]:
                keep_features.append(x)
        global_context = []
        for i, f in enumerate(keep_features):
            if i in [0, 1]:
                f = nn.AvgPool2d(kernel_size=5, stride=5)(f)
            if i in [2]:
                f = nn.AvgPool2d(kernel_size=(4, 10), stride=(4, 2))(f)
            f_pow = torch.pow(f, 2)
            f_mean = torch.mean(f_pow)
            f = torch.div(f, f_mean)
            global_context.append(f)
        x = torch.cat(global_context, 1)
        x = self.container(x)
        return torch.mean(x, dim=2)


LPRNETS = [lambda: lprnet(11, dropout=0.0), lambda: PublishedLPRNet(11)]


def rules_of(report: opswap.Report) -> list[str]:
    return [s.rule for s in report.swapped]


@pytest.mark.parametrize(("module", "rule", "shape"), MODULES, ids=[f"{m}" for m, _, _ in MODULES])
class TestModules:
    def test_bit_equal(self, module: nn.Module, rule: str, shape: tuple[int, ...]) -> None:
        stock = nn.Sequential(copy.deepcopy(module))
        model = swap(copy.deepcopy(stock), strict=True, exact=True)
        (site,) = opswap.report(model).swapped
        name = f"torch.nn.modules.pooling.{type(module).__name__}"
        assert (site.path, site.rule, site.source, site.exact) == ("0", rule, name, True)
        x = torch.randint(-3, 4, shape).float()
        for training in (True, False):
            opswap.reset_stats()
            ours = outputs_and_gradients(model.train(training), x)
            assert kernels() == 2 and not opswap.stats()["reference"]
            assert_equal(ours, outputs_and_gradients(stock.train(training), x))

    def test_instance_alone_changes_and_comes_back(
        self, module: nn.Module, rule: str, shape: tuple[int, ...]
    ) -> None:
        model = nn.Sequential(copy.deepcopy(module))
        pool, text, attributes = model[0], repr(model), list(vars(model[0]))
        members = dict(vars(type(module)))
        swap(model)
        assert model[0] is pool and isinstance(pool, type(module)) and repr(model) == text
        assert dict(vars(type(module))) == members and not model.state_dict()
        assert opswap.unswap(model)[0] is pool
        assert type(pool) is type(module) and list(vars(pool)) == attributes
        opswap.reset_stats()
        model(torch.randn(shape))
        assert not kernels() and not opswap.report(model).swapped

    def test_copies(self, module: nn.Module, rule: str, shape: tuple[int, ...]) -> None:
        model = swap(nn.Sequential(copy.deepcopy(module)))
        x = torch.randn(shape)
        for twin in twins(model):
            assert opswap.report(twin) == opswap.report(model)
            opswap.reset_stats()
            assert torch.equal(twin(x), model(x)) and kernels() == 2
            assert type(opswap.unswap(twin)[0]) is type(module)

    def test_compile_and_export(self, module: nn.Module, rule: str, shape: tuple[int, ...]) -> None:
        stock = nn.Sequential(copy.deepcopy(module))
        model = swap(copy.deepcopy(stock))
        x = torch.randn(shape)
        torch._dynamo.reset()
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        opswap.reset_stats()
        assert_equal(outputs_and_gradients(compiled, x), outputs_and_gradients(stock, x))
        assert kernels() == 2
        program = torch.export.export(model.eval(), (x,))
        assert "opswap" in str(program.graph) and torch.equal(program.module()(x), stock(x))


@pytest.mark.parametrize("cls", [nn.MaxPool2d, nn.MaxPool3d])
def test_indices(cls: type[nn.Module]) -> None:
    stock = cls(2, return_indices=True)
    model = swap(copy.deepcopy(stock), strict=True)
    x = torch.randn(3, 4, 6, 8)
    opswap.reset_stats()
    output, indices = model(x)
    assert kernels() > 0
    assert_equal([output, indices], list(stock(x)))


@pytest.mark.parametrize(("body", "rule"), [f[1:] for f in FUNCTIONS], ids=[f[0] for f in FUNCTIONS])
def test_functions(body: Callable[[Tensor], Tensor], rule: str) -> None:
    stock = Only(body)
    model = copy.deepcopy(stock)
    scanned = scan(model)
    assert rules_of(scanned) == [rule], str(scanned)
    swap(model, strict=True, exact=True)
    assert opswap.report(model).swapped == scanned.swapped
    assert "test_swap_pool.py:" in scanned.swapped[0].source
    x = torch.randint(-3, 4, IMAGE).float()
    for training in (True, False):
        opswap.reset_stats()
        ours = outputs_and_gradients(model.train(training), x)
        assert kernels() >= 2 and not opswap.stats()["reference"]
        assert_equal(ours, outputs_and_gradients(stock.train(training), x))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_equal(outputs_and_gradients(compiled, x), outputs_and_gradients(stock, x))


@pytest.mark.parametrize(("body", "reason"), [k[1:] for k in KEPT], ids=[k[0] for k in KEPT])
def test_kept(body: Callable[[Tensor], Tensor], reason: str) -> None:
    report = scan(Only(body))
    assert not report.swapped
    assert any(reason in s.reason for s in report.kept) if reason else not report.kept, str(report)


class TestTakesTheOriginalCode:
    """What a pool of ours does not know."""

    def check(self, body: Callable[[Tensor], Tensor], x: Tensor) -> None:
        stock = Only(body)
        model = swap(Only(body), strict=True)
        opswap.reset_stats()
        assert torch.equal(model(x), stock(x)) and model(x).dtype == stock(x).dtype
        assert not kernels() and not opswap.stats()["reference"]

    def test_integers(self) -> None:
        self.check(lambda x: F.max_pool2d(x, 2), torch.randint(9, IMAGE))
        self.check(lambda x: x.amax((2, 3)), torch.randint(2, IMAGE).bool())

    @pytest.mark.parametrize("size", [(5, 6, 7), (2, 3, 4, 5, 6)])
    def test_amax_of_other_tensors(self, size: tuple[int, ...]) -> None:
        self.check(lambda x: x.amax((-2, -1)), torch.randn(size))

    def test_quantized(self) -> None:
        x = torch.quantize_per_tensor(torch.randn(IMAGE), 0.1, 10, torch.quint8)
        self.check(lambda x: F.max_pool2d(x, 2), x)

    def test_wrapper_of_other_tensors(self) -> None:
        x = TwoTensor(torch.randn(IMAGE), torch.randn(IMAGE))
        self.check(lambda x: F.max_pool2d(x, 2).b, x)

    def test_mkldnn(self) -> None:
        if not torch.backends.mkldnn.is_available():
            pytest.skip("this torch has no oneDNN")
        self.check(lambda x: F.max_pool2d(x, 2).to_dense(), torch.randn(IMAGE).to_mkldnn())


class TestWhichModules:
    def test_every_output_size_is_taken(self) -> None:
        model = nn.Sequential(nn.AdaptiveMaxPool2d(7), nn.AvgPool2d(2), nn.AdaptiveMaxPool2d((1, 1)))
        report = opswap.scan(model)
        assert rules_of(report) == ["adaptive_max_pool2d", "avg_pool2d", "adaptive_max_pool2d"]
        assert not report.kept and rules_of(scan(model)) == rules_of(report)

    def test_scripted(self) -> None:
        model = nn.Sequential(torch.jit.script(nn.MaxPool2d(2)))
        assert not scan(model).swapped
        assert torch.equal(swap(model)(x := torch.randn(IMAGE)), F.max_pool2d(x, 2))

    def test_subclass_keeps_its_own_forward(self) -> None:
        class Doubled(nn.MaxPool2d):
            def forward(self, input: Tensor) -> Tensor:
                return 2 * super().forward(input)

        stock = Doubled(2)
        x = torch.randn(IMAGE)
        assert_equal(outputs_and_gradients(swap(Doubled(2)), x), outputs_and_gradients(stock, x))

    def test_shared(self) -> None:
        pool = nn.MaxPool2d(2, 1)
        stock = nn.Sequential(pool, nn.Sequential(nn.ReLU(), pool))
        model = swap(copy.deepcopy(stock))
        assert model[0] is model[1][1] and rules_of(opswap.report(model)) == ["max_pool2d"]
        x = torch.randn(IMAGE)
        opswap.reset_stats()
        assert_equal(outputs_and_gradients(model, x), outputs_and_gradients(stock, x))
        assert kernels() == 4
        assert type(opswap.unswap(model)[0]) is nn.MaxPool2d

    def test_hooks_stay(self) -> None:
        seen: list[str] = []
        model = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
        model[1].register_forward_hook(lambda *_: seen.append("forward"))
        model[1].register_full_backward_hook(lambda *_: seen.append("backward"))
        report = opswap.report(swap(model, strict=True))
        assert rules_of(report) == ["max_pool2d"] and not report.kept
        opswap.reset_stats()
        outputs_and_gradients(model, torch.randn(IMAGE))
        assert seen == ["forward", "backward"] and kernels() == 2

    def test_setting_changed_after_the_swap(self) -> None:
        model = swap(nn.MaxPool2d(2))
        model.kernel_size = 3
        x = torch.randn(IMAGE)
        assert torch.equal(model(x), F.max_pool2d(x, 3, 2))
        swap(model)
        opswap.reset_stats()
        assert torch.equal(model(x), F.max_pool2d(x, 3, 2)) and kernels() == 1

    def test_rules_can_be_chosen(self) -> None:
        from opswap.swap.rules import DEFAULT

        model = nn.Sequential(nn.MaxPool3d(2), nn.MaxPool2d(2))
        volumes = [r for r in DEFAULT if r.name == "max_pool3d"]
        report = scan(model, rules=volumes)
        assert [s.path for s in report.swapped] == ["0"] and not report.kept

    def test_second_swap_changes_nothing(self) -> None:
        model = swap(lprnet(11))
        classes, report = [type(m) for m in model.modules()], opswap.report(model)
        swap(model)
        assert [type(m) for m in model.modules()] == classes
        assert opswap.report(model) == report == scan(model)


@pytest.mark.parametrize("make", LPRNETS, ids=["opswap.models", "published"])
class TestLPRNet:
    def test_bit_equal_in_contiguous_layout(self, make: Callable[[], nn.Module]) -> None:
        stock = make()
        model = opswap.swap(copy.deepcopy(stock), strict=True, exact=True)
        swapped = opswap.report(model).swapped
        pools = [s.path for s in swapped if s.rule == "max_pool3d"]
        assert pools == ["backbone.3", "backbone.7", "backbone.14"]
        assert [s.path for s in swapped if s.rule == "avg_pool2d"] == ["", "", ""]
        assert {s.rule for s in swapped} == {"max_pool3d", "avg_pool2d"}
        assert list(model.state_dict()) == list(stock.state_dict())
        x = torch.randn(2, 3, 24, 94)
        opswap.reset_stats()
        ours = outputs_and_gradients(model, x)
        assert kernels() == 12 and not opswap.stats()["reference"]
        assert_equal(ours, outputs_and_gradients(stock, x))

    def test_trains_in_channels_last(self, make: Callable[[], nn.Module]) -> None:
        stock = make()
        twin = copy.deepcopy(stock)
        model = swap(copy.deepcopy(stock), memory_format=torch.channels_last)
        plain = torch.randn(2, 3, 24, 94)
        x = plain.contiguous(memory_format=torch.channels_last)
        with pytest.raises(RuntimeError, match="Unsupported memory format"):
            twin.to(memory_format=torch.channels_last)(x)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        y = model(x)
        torch.testing.assert_close(y, stock(plain), rtol=1e-3, atol=1e-4)
        y.square().mean().backward()
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.step()
        assert all(p.grad is not None for p in model.parameters())
        assert any(not torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize(
    ("stock", "planes", "pixels"),
    [
        (nn.AvgPool2d(2), 1 << 14, 1 << 18),
        (nn.AvgPool3d((1, 2, 2)), 1 << 14, 1 << 14),
        (nn.AdaptiveMaxPool2d(1), 1 << 15, 3 << 17),
        (nn.AdaptiveMaxPool2d(3), 1 << 15, 1 << 19),
        (Only(lambda x: x.amax((2, 3))), 1 << 18, 1 << 18),
    ],
    ids=["avg2d", "avg3d", "global", "adaptive", "amax"],
)
def test_small_inputs_stay_torchs(stock: nn.Module, planes: int, pixels: int) -> None:
    """Unless the rules for any size are asked for. Adaptive pools train here: in inference other limits hold."""
    model = opswap.swap(copy.deepcopy(stock), strict=True)
    training = isinstance(stock, nn.AdaptiveMaxPool2d)
    for memory_format, enough in ((torch.contiguous_format, planes), (torch.channels_last, pixels)):
        for channels, calls in ((enough // 256, 1), (enough // 256 - 1, 0)):
            x = torch.randn(1, channels, 16, 16).contiguous(memory_format=memory_format)
            opswap.reset_stats()
            y = model(x.requires_grad_(training))
            assert torch.equal(y, stock(x.contiguous())) and kernels() == calls
    if not isinstance(stock, Only):
        opswap.reset_stats()
        swap(copy.deepcopy(stock))(torch.randn(IMAGE))
        assert kernels() == 1


@pytest.mark.parametrize(
    ("pool", "trained", "inferred"),
    [
        (nn.AvgPool2d(3, 1, 1), 86, 86),  # 2304 reads of 256 elements
        (nn.AvgPool2d(2, 1), 219, 219),  # 900
        (nn.AvgPool2d((4, 6), (2, 3)), 293, 110),  # 28 x 24; in inference many taps gain earlier
        (nn.AvgPool2d(8, 4), 342, 128),  # 576
        (nn.AvgPool2d(16, 1), 1024, 384),  # 256: they do not overlap
        (nn.AvgPool2d(4), 1024, 384),
        (nn.AvgPool2d(2), 1024, 1024),
    ],
    ids=str,
)
@pytest.mark.parametrize("training", [True, False])
def test_overlapping_windows_count_what_they_read(
    pool: nn.Module, trained: int, inferred: int, training: bool
) -> None:
    """In channels_last, of 16 x 16 pixels."""
    channels = trained if training else inferred
    model = opswap.swap(copy.deepcopy(pool), strict=True)
    for c, calls in ((channels, 1), (channels - 1, 0)):
        x = torch.randn(1, c, 16, 16).contiguous(memory_format=torch.channels_last)
        opswap.reset_stats()
        torch.testing.assert_close(model(x.requires_grad_(training)), pool(x))
        assert kernels() == calls
    if inferred < trained:  # of float32 alone
        model(x.detach().bfloat16())
        model(x.detach().half())
        assert kernels() == 0


@pytest.mark.parametrize(
    "make", [lambda: nn.AvgPool2d(2), lambda: nn.AvgPool2d(3, 1, 1), lambda: nn.MaxPool2d(2)]
)
@pytest.mark.parametrize(("channels", "dtype"), [(7, torch.float32), (64, torch.float64)])
def test_pixels_that_fill_no_vector_stay_torchs(
    make: Callable[[], nn.Module], channels: int, dtype: torch.dtype
) -> None:
    """In channels_last, where torch is faster in a step; not if they are planes, or of more channels.

    An average pool of float64 stays torch's as planes too.
    """
    model = opswap.swap(make(), strict=True)
    x = torch.randn(2, channels, 160, 160, dtype=dtype)
    planes = 0 if isinstance(model, nn.AvgPool2d) and dtype is torch.float64 else 1
    for images, calls in ((x.contiguous(memory_format=torch.channels_last), 0), (x, planes)):
        opswap.reset_stats()
        model(images.clone().requires_grad_())
        assert kernels() == calls
    opswap.reset_stats()
    model(torch.randn(2, 8, 160, 160).contiguous(memory_format=torch.channels_last).requires_grad_())
    assert kernels() == 1


def test_amax_that_trains_is_taken_at_any_size() -> None:
    model = opswap.swap(Only(lambda x: x.amax((2, 3))))
    opswap.reset_stats()
    model(torch.randn(IMAGE, requires_grad=True)).sum().backward()
    assert kernels() == 2


class Lines(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(x.size(0), -1)


class Indices(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        output, indices = F.adaptive_max_pool3d(x, 2, return_indices=True)
        return output.view(x.size(0), -1) + indices.view(x.size(0), -1)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("size", [(2, 8, 8, 8, 8), (8, 8, 8, 8)], ids=str)
@pytest.mark.parametrize(
    "stock",
    [
        nn.Sequential(nn.AvgPool3d(2), Lines()),
        nn.Sequential(nn.AvgPool3d(2), nn.Identity(), nn.Dropout(0.5)),
        nn.Sequential(nn.AdaptiveMaxPool3d(4), Lines()),
        nn.Sequential(nn.AdaptiveMaxPool3d(4), nn.Dropout(0.5)),
        Only(lambda x: F.avg_pool3d(x, 2).relu().view(x.size(0), -1)),
        Only(lambda x: F.dropout(F.adaptive_max_pool3d(x, 2), 0.5)),
        Indices(),
    ],
    ids=lambda m: f"{type(m[0]).__name__} {type(m[-1]).__name__}" if isinstance(m, nn.Sequential) else "",
)
def test_code_that_depends_on_the_order_of_volumes_in_memory(
    stock: nn.Module, size: tuple[int, ...], exact: bool
) -> None:
    """torch's pools over volumes return contiguous tensors for an input in channels_last."""
    last = torch.channels_last if len(size) == 4 else torch.channels_last_3d
    x, results = torch.randn(size).contiguous(memory_format=last), []
    for model in (stock, swap(copy.deepcopy(stock), exact=exact, strict=True)):
        opswap.reset_stats()
        torch.manual_seed(7)
        results.append(model(x))
    assert kernels() > 0
    assert torch.equal(*results) and results[0].stride() == results[1].stride()


def test_volumes_keep_channels_last_if_no_code_depends_on_it() -> None:
    stock = nn.Sequential(nn.AvgPool3d(2), nn.Conv3d(8, 8, 1), nn.AdaptiveAvgPool3d(1), nn.Dropout(0.5))
    model = swap(stock, memory_format=torch.channels_last_3d)
    output = model[0](torch.randn(2, 8, 8, 8, 8).contiguous(memory_format=torch.channels_last_3d))
    assert output.is_contiguous(memory_format=torch.channels_last_3d)


@pytest.mark.parametrize("cls", [nn.MaxPool3d, nn.AvgPool3d])
@pytest.mark.parametrize(("channels", "dtype"), [(4, torch.float32), (16, torch.float64)])
@pytest.mark.parametrize("training", [False, True])
def test_volumes_without_a_batch_in_channels_last(
    cls: type[nn.Module], channels: int, dtype: torch.dtype, training: bool
) -> None:
    """torch refuses them, so that it does not matter which is faster."""
    stock = cls((1, 3, 3), (2, 1, 2))
    model = swap(copy.deepcopy(stock), strict=True).train(training)
    x = torch.randn(3, channels, 40, 40, dtype=dtype).contiguous(memory_format=torch.channels_last)
    opswap.reset_stats()
    torch.testing.assert_close(model(x.requires_grad_(training)), stock(x.detach().contiguous()))
    assert kernels() > 0


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_whole_numbers_in_channels_last(dtype: torch.dtype) -> None:
    """A model that converts its inputs must take what the stock model takes."""
    stock = nn.Sequential(nn.MaxPool3d((1, 3, 3), (2, 1, 2)))
    model = swap(copy.deepcopy(stock), memory_format=torch.channels_last)
    x = torch.randint(0, 99, (3, 8, 9, 9)).to(dtype)
    got = model(x)
    assert torch.equal(got, stock(x)) and got.is_contiguous(memory_format=torch.channels_last)
    twin = swap(copy.deepcopy(stock))
    opswap.reset_stats()
    assert torch.equal(twin(x), stock(x)) and kernels() == 0
