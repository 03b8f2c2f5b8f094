"""`python -m arch.bench --check`: what it calls wrong, what it says is off, and that its published times are the docs'.
Its own times need a GPU."""

import re
from dataclasses import replace

import pytest
import torch

from arch.bench import command as bench
from arch.bench.cases import CASES
from arch.bench.check import SMALL, STEPS, errors_of
from arch.errors import InputError
from arch.ops.common import WITH_TRITON

from ...conftest import ROOT

if not WITH_TRITON:
    pytest.skip("triton is not installed (pip install triton==3.7.1)", allow_module_level=True)

from arch.ops.triton import device_config

SHAPE = (1, 20, 2, 16)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("name", ["tnl", "hgrn2-far"])
def test_kernels_are_right(name):
    assert errors_of(CASES[name], SHAPE, torch.float32, DEVICE)["kernels"] == "right"


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (lambda out, q: out * 1.02, "WRONG"),
        (lambda out, q: out / torch.zeros_like(q), "WRONG"),  # no number
        (lambda out, q: out[:, :3], "fail"),
    ],
)
def test_a_kernel_that_is_wrong_is_named(change, verdict):
    case = CASES["tnl"]
    kernels = case.runs["triton"]
    wrong = replace(case, runs=case.runs | {"triton": lambda *shape: lambda x: change(kernels(*shape)(x), x[0])})
    assert errors_of(wrong, SHAPE, torch.float32, DEVICE)["kernels"] == verdict


@pytest.mark.parametrize(
    ("trusted", "gluon", "expected"),
    [(True, True, None), (True, False, "Gluon are off: Triton"), (False, True, "instructions are off.*ptxas")],
)
def test_what_is_off_is_one_line(trusted, gluon, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(device_config, "hopper", lambda: True)
    monkeypatch.setattr(device_config, "trusted_assembler", lambda: trusted)
    monkeypatch.setattr(device_config, "GLUON", gluon)
    lines = device_config.switched_off()
    assert len(lines) == (expected is not None)
    if expected:
        assert re.search(expected, lines[0])
        monkeypatch.setattr("arch.ops.common._WARNED", set())
        with pytest.warns(UserWarning, match=expected):  # a run's log has it too
            device_config.hopper_instructions(exact=False)


def test_published_times_are_those_of_the_docs():
    text = (ROOT / "docs" / "speed.md").read_text()
    small = re.search(r"8 layers, width 256 .*?\| ([\d., ]+) \|", text)
    assert [float(x) for x in small[1].split(",")] == list(STEPS[SMALL].values())
    for name, published in STEPS["--size 410m"].items():
        row = next(line for line in text.splitlines() if line.lower().startswith(f"| {name}"))
        assert float(row.split("|")[2]) == published


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path):
    with pytest.raises(InputError, match="needs a GPU"):
        bench.main(["--check", "--json", str(tmp_path / "out.json")])
