"""`python -m benchmarks.kernels`: peers get what ours have, the picture has the rows. Its times need a GPU."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch

from arch.bench import command, measure
from arch.errors import InputError
from benchmarks import kernel_plot, kernels
from benchmarks.kernel_peers import CASES_WITH_PEERS as CASES


def simple_gla(q, k, v, g=None, g_gamma=None, scale=None):
    """What flash-linear-attention's chunk_simple_gla documents, step by step; its kernels need a GPU."""
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


def measured():
    """Rows as the benchmark writes them, with times made up; one backend that failed, and a row of errors."""
    rows = []
    for name in ("tnl", "hgrn2"):
        for shape in kernel_plot.shapes(8, 128)[:3]:
            for backend, slower in (("triton", 2.0), ("chunk", 30.0)):
                row = {"case": name, "shape": ",".join(map(str, shape)), "backend": backend}
                floors = CASES[name].floors(*shape)
                times = {f"{k}_ms": slower * kernel_plot.floor_ms(floors, k) for k in ("forward", "both")}
                rows.append(row | times | floors)
    rows.append({"case": "tnl", "shape": "1,65536,8,128", "backend": "chunk", "error": "OutOfMemoryError: "})
    rows.append({"case": "tnl", "backend": "triton", "against": "naive", "shape": [1, 500, 8, 128], "out": "2e-3"})
    return rows


def test_plot(tmp_path):
    rows = measured()
    drawn = kernel_plot.figure(rows)
    assert len(drawn.data) == 2 * 2 * 2 * 2  # cases, panels, backends, directions
    times = {trace.name: list(trace.y) for trace in drawn.data if trace.yaxis == "y2"}
    assert times["triton"] == pytest.approx([2.0] * 3) and times["chunk"] == pytest.approx([30.0] * 3)
    per_token = next(trace for trace in drawn.data if trace.yaxis == "y" and trace.name == "triton")
    assert list(per_token.x) == [1024, 2048, 4096]
    assert per_token.y[0] == pytest.approx(1e6 * rows[0]["both_ms"] / 32_768)
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    kernels.main(["--rows", str(tmp_path / "rows.json"), "--plot", str(tmp_path / "kernels.html")])
    page = (tmp_path / "kernels.html").read_text()
    assert "hgrn2: times the floor" in page and 'src="http' not in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "x.json"], "name the picture with --plot"),
        (["--rows", "missing.json", "--plot", "x.html"], "missing.json: No such file or directory; give a file"),
        (["--rows", "no.json", "--plot", "x.html"], "no.json: holds no times of this benchmark"),
        (["--rows", "empty.json", "--plot", "x.html"], "empty.json: holds no times of this benchmark"),
        (["--only", "tnk"], "unknown 'tnk'"),
        (["--backends", "flb"], "unknown 'flb'"),
        (["--plot", "nowhere/x.html"], "--plot nowhere/x.html: there is no directory nowhere"),
        (["--shape", "1,2,3"], "write rows, tokens, heads and width"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_measured(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(command, "device", lambda: pytest.fail("it goes on to measure"))
    (tmp_path / "no.json").write_text('[{"both_ms": 1}]')
    (tmp_path / "empty.json").write_text("[]")
    with pytest.raises(InputError, match=message):
        kernels.main(arguments)
    assert not (tmp_path / "x.html").exists()
