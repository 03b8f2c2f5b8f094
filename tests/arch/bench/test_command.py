"""`python -m arch.bench`: its floors are what torch counts, and it refuses bad arguments. Its times need a GPU."""

import sys

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from arch.bench import command as bench
from arch.bench import measure
from arch.bench.cases import CASES
from arch.bench.floors import COPY
from arch.errors import InputError
from arch.ops import common

SHAPE = (1, 128, 2, 16)


@pytest.mark.parametrize("name", [name for name in CASES if name != "llama"])
def test_products_are_the_chunk_backends(name):
    case = CASES[name]
    inputs, weight = case.inputs(*SHAPE, dtype=torch.float32, device="cpu")
    run = case.runs["chunk"](*SHAPE)
    with torch.no_grad(), FlopCounterMode(display=False) as forward:
        run(inputs)
    with FlopCounterMode(display=False) as both:
        measure.gradients(run, inputs, weight)
    assert case.products(*SHAPE) == (forward.get_total_flops(), both.get_total_flops())


def test_products_of_softmax_are_the_causal_half():
    case = CASES["llama"]
    inputs, _ = case.inputs(*SHAPE, dtype=torch.float32, device="cpu")
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        case.runs["sdpa"](*SHAPE)(inputs)
    assert case.products(*SHAPE)[0] == counter.get_total_flops() / 2


def test_floors():
    """TNL at B4 T8192 H8 D128: four activations forward, eleven in all; 70 GFLOP forward."""
    result = CASES["tnl"].floors(4, 8192, 8, 128)
    copy_ms = 2 * 4 * 8192 * 1024 / COPY * 1e3
    assert result["floor_forward_ms"] == pytest.approx(4 * copy_ms, abs=1e-4)
    assert result["floor_both_ms"] == pytest.approx(11 * copy_ms, abs=1e-4)
    assert result["matrix_forward_ms"] == pytest.approx(4 * 8192 * 8 * (256 * 128 + 4 * 128**2) / 989e9, abs=1e-4)
    assert result["matrix_both_ms"] == pytest.approx(3 * result["matrix_forward_ms"], abs=3e-4)


def test_without_triton_the_other_backends_are_timed(monkeypatch):
    monkeypatch.setattr(common, "WITH_TRITON", False)
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    assert bench.device().endswith(", no triton")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "tnk"], "unknown 'tnk'"),
        (["--backends", "fla"], "unknown 'fla' .valid: triton, chunk, sdpa"),
        (["--json", "."], "--json .: is a directory"),
        (["--model", "tnl", "--json", "nowhere/x.json"], "there is no directory nowhere"),
        (["--model", "tnl", "--steps", "0"], "--steps: must be 1 or more, not 0"),
        (["--repeats", "-1"], "--repeats: must be 1 or more, not -1"),
        (["--shape", "1,2,3"], "write rows, tokens, heads and width"),
        (["--shape", "4,8192,8,128 1,2,3,x"], "--shape 1,2,3,x: write whole numbers"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_measured(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(bench, "device", lambda: pytest.fail("it goes on to measure"))
    with pytest.raises(InputError, match=message):
        bench.main(arguments)


def test_an_unknown_option_is_one_line(capsys):
    with pytest.raises(SystemExit, match="2"):
        bench.main(["--bogus"])
    assert capsys.readouterr().err == "error: unrecognized arguments: --bogus; python -m arch.bench --help lists all\n"
