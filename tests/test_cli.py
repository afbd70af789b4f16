# SPDX-License-Identifier: MIT
"""The command line: arguments, scan and doctor."""

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import opswap
from opswap import _machine, cli, doctor, torch_defects
from opswap.memory import page_faults
from surviving import command

_MODELS = """
import torch
from opswap.models import shufflenet_v2_x0_5

def shuffled():
    return shufflenet_v2_x0_5(num_classes=3)

instance = shuffled()
plain = torch.nn.Linear(2, 2)
number = lambda: 7
needy = lambda classes: plain

def broken():
    raise ModuleNotFoundError("No module named 'nowhere'", name="nowhere")
"""


@pytest.fixture(autouse=True)
def quick_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_faults, "_SIZE", (2, 3, 32, 32))


@pytest.fixture
def no_defects(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is tried, which takes a process for each."""
    monkeypatch.setattr(torch_defects, "try_all", list)


@pytest.fixture
def model_file(module_file: Callable[[str, str], Path]) -> str:
    module_file("my_models", _MODELS)
    return "my_models"


@pytest.mark.parametrize(
    ("arguments", "quoted"),
    [
        ([], "required"),
        (["fly"], "'fly'"),
        (["demo", "--epochs", "0"], "'0'"),
        (["demo", "--epochs", "many"], "'many'"),
        (["demo", "--batch-size", "1"], "'1'"),
        (["demo", "--image-size", "16"], "'16'"),
        (["demo", "--seed", "-4"], "'-4'"),
        (["demo", "--seed", str(2**32)], f"'{2**32}'"),
        (["demo", "--threads", "2.5"], "'2.5'"),
        (["demo", "--rounds", "x"], "'x'"),
        (["demo", "--min-accuracy", "101"], "'101'"),
        (["demo", "--min-accuracy", "nan"], "'nan'"),
        (["demo", "--output", "no/such/folder/plot.png"], "'no/such/folder/plot.png'"),
        (["demo", "--output", "."], "'.'"),
        (["demo", "--colour"], "--colour"),
        (["scan"], "package.module:factory"),
        (["scan", "torch.nn"], "'torch.nn'"),
        (["scan", ":factory"], "':factory'"),
    ],
)
def test_bad_arguments_exit_with_2_and_quote_the_value(
    arguments: list[str], quoted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    assert quoted in capsys.readouterr().err


def test_python_dash_m_prints_the_version() -> None:
    done = command(Path(), "--version")
    assert (done.returncode, done.stdout) == (0, f"opswap {opswap.__version__}\n")


@pytest.mark.parametrize("name", ["shuffled", "instance"])
def test_scan_lists_the_sites_and_changes_nothing(
    model_file: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["scan", f"{model_file}:{name}", "--exact"]) == 0
    printed = capsys.readouterr().out
    assert "17 swapped" in printed and "stage4.3" in printed
    assert not opswap.report(sys.modules[model_file].instance).swapped


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("my_models:absent", "'my_models' has no 'absent'"),
        ("my_models:number", "gave an object of type int"),
        ("my_models:needy", "cannot be called without arguments: missing a required argument: 'classes'"),
        ("./my_models.py:shuffled", "'./my_models.py' is not the name of a module"),
        ("my_modelz:shuffled", "no module 'my_modelz'"),
        ("my_models.inner:shuffled", "no module 'my_models.inner'"),
    ],
)
def test_scan_of_what_is_no_model_fails_clearly(
    model_file: str, target: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["scan", target]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("no_defects")
@pytest.mark.parametrize("arguments", [["scan", "my_models:plain"], ["doctor"], ["--help"]], ids=" ".join)
def test_a_reader_that_stops_is_no_error(
    arguments: list[str],
    model_file: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert cli.main(arguments) == 141
        print("more")
    assert capfd.readouterr() == ("", "")


def test_scan_exits_with_1_where_nothing_is_found(model_file: str) -> None:
    assert cli.main(["scan", f"{model_file}:plain"]) == 1


def test_scan_shows_the_models_own_import_error(model_file: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        cli.main(["scan", f"{model_file}:broken"])


def test_doctor_names_versions_and_tiers(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    printed = capsys.readouterr().out
    for value in (opswap.__version__, torch.__version__, _machine.cpu_model(), opswap.isa.current()):
        assert value in printed
    assert ", ".join(opswap.isa.available()) in printed


@pytest.mark.usefixtures("no_defects")
def test_doctor_fails_where_a_kernel_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = doctor.channels.reference
    monkeypatch.setattr(doctor.channels, "reference", lambda *a, **k: [t + 1 for t in reference(*a, **k)])
    assert cli.main(["doctor"]) == 1
    assert "differs from the reference" in capsys.readouterr().out


def test_doctor_looks_at_every_family(monkeypatch: pytest.MonkeyPatch) -> None:
    for check in doctor._CHECKS:
        off = dataclasses.replace(check, ours=lambda x, check=check: check.ours(x) * 1.001)
        monkeypatch.setattr(doctor, "_CHECKS", (off,))
        assert all(f", {check.name}, " in fault for fault in doctor.check_kernels())
        assert len(doctor.check_kernels()) >= 6


def test_doctor_fails_where_the_reference_runs_in_place_of_a_kernel() -> None:
    with opswap.force_reference():
        faults = doctor.check_kernels()
    assert faults and all("in place of the kernel" in fault for fault in faults)


def test_doctor_restores_the_tier_and_the_counts() -> None:
    tier = opswap.isa.current()
    doctor.check_kernels()
    assert opswap.isa.current() == tier


@pytest.mark.parametrize("missing", ["rich", "matplotlib", "sklearn"])
def test_demo_without_its_extras_names_them(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = [name for name in sys.modules if name.split(".")[0] == missing or name.startswith("opswap.demo")]
    for name in loaded:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(opswap, "demo", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    assert cli.main(["demo"]) == 2
    printed = capsys.readouterr().err
    assert f"needs {missing}" in printed and "pip install 'opswap[demo]'" in printed
