"""`python -m arch.bench`: its floors are what torch counts, its plot holds what was measured. Its times need a GPU."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from arch.bench import command as bench
from arch.bench import measure
from arch.bench import plot as bench_plot
from arch.bench import sweep as bench_sweep
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


def simple_gla(q, k, v, g=None, g_gamma=None, scale=None):
    """What flash-linear-attention's chunk_simple_gla documents, step by step; its kernels need a GPU. test_fla.py has
    its own reference in this place."""
    decay = g_gamma.expand(*v.shape[:3]) if g is None else g
    state, outputs = torch.zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3], dtype=q.dtype), []
    for t in range(q.shape[1]):
        state = state * decay[:, t].exp()[..., None, None] + k[:, t, :, :, None] * v[:, t, :, None]
        outputs.append((scale * q[:, t, :, None] @ state)[:, :, 0])
    return torch.stack(outputs, 1), state


@pytest.mark.parametrize("name", ["tnl", "mamba2"])
def test_the_peer_is_given_the_decays_that_ours_have(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "fla.ops.simple_gla", SimpleNamespace(chunk_simple_gla=simple_gla))
    case, shape = CASES[name], (1, 96, 4, 16)
    inputs, weight = case.inputs(*shape, dtype=torch.float32, device="cpu", backend="fla")
    ours = measure.gradients(case.reference("naive", "fla")(*shape), inputs, weight)
    assert max(measure.relative(measure.gradients(case.runs["fla"](*shape), inputs, weight), ours)) < 1e-5


def test_products_of_softmax_are_the_causal_half():
    case = CASES["llama"]
    inputs, _ = case.inputs(*SHAPE, dtype=torch.float32, device="cpu")
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        case.runs["sdpa"](*SHAPE)(inputs)
    assert case.products(*SHAPE)[0] == counter.get_total_flops() / 2


def test_floors():
    """TNL at B4 T8192 H8 D128: four activations forward, eleven in all; 70 GFLOP forward."""
    found = CASES["tnl"].floors(4, 8192, 8, 128)
    one = 2 * 4 * 8192 * 1024 / COPY * 1e3
    assert found["floor_forward_ms"] == pytest.approx(4 * one, abs=1e-4)
    assert found["floor_both_ms"] == pytest.approx(11 * one, abs=1e-4)
    assert found["matrix_forward_ms"] == pytest.approx(4 * 8192 * 8 * (256 * 128 + 4 * 128**2) / 989e9, abs=1e-4)
    assert found["matrix_both_ms"] == pytest.approx(3 * found["matrix_forward_ms"], abs=3e-4)


def measured():
    """Rows as the benchmark writes them, with times made up; one backend that failed, and a row of errors."""
    rows = []
    for name in ("tnl", "hgrn2"):
        for shape in bench_plot.shapes(8, 128)[:3]:
            for backend, slower in (("triton", 2.0), ("chunk", 30.0)):
                row = {"case": name, "shape": ",".join(map(str, shape)), "backend": backend}
                floors = CASES[name].floors(*shape)
                times = {f"{k}_ms": slower * bench_plot.floor_ms(floors, k) for k in ("forward", "both")}
                rows.append(row | times | floors)
    rows.append({"case": "tnl", "shape": "1,65536,8,128", "backend": "chunk", "error": "OutOfMemoryError: "})
    rows.append({"case": "tnl", "backend": "triton", "against": "naive", "shape": [1, 500, 8, 128], "out": "2e-3"})
    return rows


def test_plot(tmp_path):
    rows = measured()
    drawn = bench_plot.figure(rows)
    assert len(drawn.data) == 2 * 2 * 2 * 2  # cases, panels, backends, directions
    times = {trace.name: list(trace.y) for trace in drawn.data if trace.yaxis == "y2"}
    assert times["triton"] == pytest.approx([2.0] * 3) and times["chunk"] == pytest.approx([30.0] * 3)
    per_token = next(trace for trace in drawn.data if trace.yaxis == "y" and trace.name == "triton")
    assert list(per_token.x) == [1024, 2048, 4096]
    assert per_token.y[0] == pytest.approx(1e6 * rows[0]["both_ms"] / 32_768)
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    bench.main(["--rows", str(tmp_path / "rows.json"), "--plot", str(tmp_path / "bench.html")])
    page = (tmp_path / "bench.html").read_text()
    assert "hgrn2: times the floor" in page and 'src="http' not in page


def test_shapes_of_one_length():
    """Two widths at the same length are two points of a line."""
    rows = measured()[:2]
    rows += [row | {"shape": "32,1024,16,64"} for row in rows]
    assert all(list(trace.x) == [1024, 1024] for trace in bench_plot.figure(rows).data)


def test_without_triton_the_other_backends_are_timed(monkeypatch):
    monkeypatch.setattr(common, "WITH_TRITON", False)
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    assert bench.device().endswith(", no triton")


@pytest.mark.skipif(not common.WITH_TRITON, reason="triton is not installed (pip install triton==3.7.1)")
@pytest.mark.parametrize(
    ("case", "rules"),
    [
        ("hgrn2", "gated_for_device"),
        ("hgrn2-silu", "gated_for_device"),
        ("hgrn2-far", "gated_for_device"),
        ("cosformer2", "rotary_for_device"),
        ("cosformer2-silu", "rotary_for_device"),
        ("tnl", "decay_config"),
        ("tnl-silu", "decay_config"),
    ],
)
def test_sweeps_set_sizes_that_there_are(case, rules, monkeypatch):
    from arch import kernel_config
    from arch.ops.triton import device_config

    monkeypatch.setattr(device_config, "trusted_assembler", lambda: False)
    trials = bench_sweep.trials(case, 128)
    for trial in trials:
        with kernel_config.override(**trial):
            found = getattr(device_config if rules.endswith("device") else kernel_config, rules)(128, 128, False)
        assert {name: getattr(found, name) for name in trial} == trial
    if case == "tnl":  # their own sizes are those of the kernels by mma.sync, which must be what runs
        assert all(trial["tma"] is False for trial in trials if "warps" in trial)


def test_lengths_of_the_plot():
    """32,768 tokens a batch, but for the longest row."""
    tokens = [batch * length for batch, length, _, _ in bench_plot.shapes(8, 128)]
    assert tokens == [32_768] * 6 + [65_536]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "x.json"], "name the picture with --plot"),
        (["--rows", "missing.json", "--plot", "x.html"], "missing.json: No such file or directory; give a file"),
        (["--rows", "no.json", "--plot", "x.html"], "no.json: holds no times of this benchmark"),
        (["--rows", "empty.json", "--plot", "x.html"], "empty.json: holds no times of this benchmark"),
        (["--only", "tnk"], "unknown 'tnk'"),
        (["--plot", "nowhere/x.html"], "--plot nowhere/x.html: there is no directory nowhere"),
        (["--json", "."], "--json .: is a directory"),
        (["--lra", "--json", "nowhere/x.json"], "there is no directory nowhere"),
        (["--model", "tnl", "--json", "nowhere/x.json"], "there is no directory nowhere"),
        (["--model", "tnl", "--steps", "0"], "--steps: must be 1 or more, not 0"),
        (["--repeats", "-1"], "--repeats: must be 1 or more, not -1"),
        (["--shape", "1,2,3"], "write rows, tokens, heads and width"),
        (["--shape", "4,8192,8,128 1,2,3,x"], "--shape 1,2,3,x: write whole numbers"),
    ],
)
def test_bad_arguments_are_told_before_anything_is_measured(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(bench, "device", lambda: pytest.fail("it goes on to measure"))
    (tmp_path / "no.json").write_text('[{"both_ms": 1}]')
    (tmp_path / "empty.json").write_text("[]")
    with pytest.raises(InputError, match=message):
        bench.main(arguments)
    assert not (tmp_path / "x.html").exists()


def test_an_unknown_option_is_one_line(capsys):
    with pytest.raises(SystemExit, match="2"):
        bench.main(["--bogus"])
    assert capsys.readouterr().err == "error: unrecognized arguments: --bogus; python -m arch.bench --help lists all\n"
