"""How the GPUs of a machine are used: how many runs share one, and whose kernels are compiled while others train."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import torch

from arch.kernel_config import SUM_NORM_ROWS
from jobs import local
from jobs.local import beside
from jobs.workers import Task
from scaling.cli.gpu_sharing import LITTLE_ROOM, ROOM, compile_tasks, compiled_ahead, gains_of, runs_together, shares_of
from scaling.rundir.directory import RunDir
from scaling.study.cost import memory_bytes
from scaling.study.jobs_schema import Jobs
from scaling.study.run import RunSpec
from scaling.study.spec import load_study
from scaling.trainer import compile_ahead, kernel_check

from ..small_runs import make_run

STUDY = """
name: small
corpus: {source: "synthetic:0:3000000", tokenizer: bytes}
grid:
  archs: [hgrn2]
  sizes:
    s: {n_layers: 2, d_model: 128, n_heads: 1, d_ffn: 344}
    m: {n_layers: 8, d_model: 256, n_heads: 2, d_ffn: 688}
model: {context_length: 2048}
training: {n_tokens: 4e6, lr: 1e-3, precision: bf16, batch_tokens: BATCH, zero_stage: ZERO}
jobs: {cuda_graphs: GRAPHS}
"""


def runs(folder: Path, batch: int, zero: int = 0, graphs: str = "true", more: str = "") -> list[RunSpec]:
    text = STUDY.replace("BATCH", f"{batch}{more}").replace("ZERO", str(zero)).replace("GRAPHS", graphs)
    file = folder / "small.yaml"
    file.write_text(text)
    return load_study(str(file)).runs()


@pytest.mark.parametrize(("batch", "wanted"), [(4096, [8, 4]), (16_384, [4, 4]), (65_536, [4, 1]), (131_072, [1, 1])])
def test_as_many_as_was_measured_to_be_faster(batch: int, wanted: list[int], tmp_path: Path) -> None:
    sized_runs = runs(tmp_path, batch)
    assert [runs_together(run, None, ROOM) for run in sized_runs] == wanted


def test_a_pass_decides_not_the_batch(tmp_path: Path) -> None:
    assert [runs_together(run, None, ROOM) for run in runs(tmp_path, 65_536, more=", micro_batch_tokens: 16384")] == [
        4,
        4,
    ]


def test_images_count_by_their_patches(tmp_path: Path) -> None:
    """Passes of 4 images of 256 patches of 192 channels."""
    run = load_study("imagenet").runs("arch=vanilla,size=tiny")[0]
    training = run.training.model_copy(update={"batch_tokens": 4 * run.context_length})
    assert runs_together(run.model_copy(update={"training": training}), None, ROOM) == 8


def test_what_the_study_asks_for(tmp_path: Path) -> None:
    """1: one after another. A number is for small runs; large ones stay alone."""
    small, large = runs(tmp_path, 65_536)
    assert [runs_together(small, asked, ROOM) for asked in (1, 2, 8)] == [1, 2, 8]
    assert [runs_together(large, asked, ROOM) for asked in (1, 2, 8)] == [1, 1, 1]


def test_alone_where_the_host_is_busy_or_memory_is_short(tmp_path: Path) -> None:
    assert [runs_together(run, None, ROOM) for run in runs(tmp_path, 4096, graphs="false")] == [1, 1]
    assert [runs_together(run, None, ROOM) for run in runs(tmp_path, 4096, zero=1)] == [1, 1]
    run = runs(tmp_path, 65_536)[0]
    memory = memory_bytes(run, 1, True)
    assert memory is not None and 4 * memory < ROOM
    assert [runs_together(run, None, room * memory) for room in (4.1, 2.5, 0.5)] == [4, 2, 1]


def test_shares_of_the_gpus_that_are_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of what they have is given away, little where nobody knows; none where the study shares GPUs out."""
    small = runs(tmp_path, 16_384)[:1]
    gpus, memory = ["0", "1"], list[int | None]([80 << 30])
    monkeypatch.setattr(local, "visible_gpus", lambda: gpus)
    monkeypatch.setattr(local, "gpu_memory_bytes", lambda: memory[0])
    assert shares_of(small, Jobs()) == [1 / 4] and shares_of(small, Jobs(parallel=2, runs_per_gpu=3)) == [1 / 3]
    assert shares_of(small, Jobs(processes=2)) == shares_of(small, Jobs(parallel=3)) == [1.0]
    needed = memory_bytes(small[0], 1, True)
    assert needed is not None and 2 * needed < LITTLE_ROOM
    memory[0] = int(13 * needed)  # room for four on a GPU, of one process or of two
    assert shares_of(small, Jobs(parallel=2, runs_per_gpu=4)) == [1 / 4]
    assert shares_of(small, Jobs(parallel=3, runs_per_gpu=4)) == [1 / 2]
    for memory[0], n in ((int(6.5 * needed), 2), (int(2.5 * needed), 1), (None, min(4, int(LITTLE_ROOM // needed)))):
        assert shares_of(small, Jobs()) == [1 / n]
    gpus.clear()
    assert shares_of(small, Jobs()) == [1.0]


def test_what_runs_gain_in_company(tmp_path: Path) -> None:
    """At least what docs/research/trainer-speed.md has of them, of as many as are there for each GPU."""
    for batch, gains in (
        (4096, [(1.6, 2.5), (1.25, 1.4)]),
        (16_384, [(1.25, 1.4), (1.1, 1.1)]),
        (65_536, [(1.1, 1.1)]),
    ):
        for run, (two, four) in zip(runs(tmp_path, batch), gains, strict=False):
            share = 1 / runs_together(run, None, ROOM)
            for n, slots, gain in ((1, 1, None), (2, 1, two), (3, 1, two), (4, 1, four), (8, 8, None), (16, 8, two)):
                alike = [run.model_copy(update={"run_id": str(i)}) for i in range(n)]
                assert gains_of(alike, [share] * n, slots) == ({str(i): gain for i in range(n)} if gain else {})
            alike = [run.model_copy(update={"run_id": str(i)}) for i in range(8)]
            assert gains_of(alike, [1 / 2] * 8, 1) == {str(i): two for i in range(8)}
    small, large = runs(tmp_path, 65_536)
    assert gains_of([small, large, large], [1 / 4, 1.0, 1.0], 1) == {}


def prepared(rundir: RunDir) -> tuple:
    return rundir.spec(), rundir


def test_every_model_once_and_not_those_that_train_first(tmp_path: Path) -> None:
    runs = [
        prepared(make_run(tmp_path, arch, n_steps=3, name=name, **more))
        for name, arch, more in (
            ("first", "hgrn2", {}),
            ("same", "hgrn2", {"lr": 1e-4}),
            ("tnl", "tnl", {}),
            ("again", "tnl", {"lr": 1e-4}),
            ("fp32", "tnl", {"precision": "fp32"}),
        )
    ]
    names = [rundir.path.parent.parent.name for _, rundir in compiled_ahead(runs, 1)]
    bf16 = runs[0][0].training.precision == "bf16"
    assert names == (["tnl", "fp32"] if bf16 else ["tnl"])
    assert compiled_ahead(runs, 3) == ([runs[4]] if bf16 else [])


def test_depth_makes_no_other_kernels(tmp_path: Path) -> None:
    run, rundir = prepared(make_run(tmp_path, n_steps=3))
    deeper = run.model_copy(update={"model": run.model | {"n_layers": 7}})
    single = run.model_copy(update={"model": run.model | {"n_layers": 1}})
    assert [chosen for chosen, _ in compiled_ahead([(run, rundir), (deeper, rundir), (single, rundir)], 0)] == [
        run,
        single,
    ]


def test_tasks_take_turns_on_the_cores_that_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [prepared(make_run(tmp_path, arch, n_steps=3, name=arch)) for arch in ("hgrn2", "tnl", "llama", "mamba1")]
    log = tmp_path / "log"
    assert compile_tasks(runs, 1, log) == []  # no GPU here
    monkeypatch.setattr(local, "visible_gpus", lambda: ["0"])
    monkeypatch.setattr(local, "visible_cores", lambda: list(range(4)))
    tasks = compile_tasks(runs, 1, log)
    assert [[Path(x).parent.parent.name for x in task.argv[7:]] for task in tasks] == [
        ["tnl", "mamba1"],
        ["llama"],
    ]
    alike = [task.argv for task in tasks]
    assert [task.argv for task in compile_tasks(runs, 1, log, [1.0] * 4)] == alike
    together = compile_tasks(runs, 1, log, [1 / 4] * 4)  # all begin at once, the first of them compiles
    assert [task.argv[7:] for task in together] == [argv[7:] for argv in alike]
    monkeypatch.setattr(local, "visible_cores", lambda: list(range(6)))
    two = compile_tasks(runs, 2, log, [1 / 4] * 4)
    assert [[Path(x).parent.parent.name for x in task.argv[7:]] for task in two] == [["llama"], ["mamba1"]]
    monkeypatch.setattr(local, "visible_cores", lambda: [0, 1])
    assert compile_tasks(runs, 1, log) == []


def test_what_runs_beside_ends_with_the_block(tmp_path: Path) -> None:
    code = "import os, pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(60)"
    pids = [tmp_path / "a", tmp_path / "b"]
    with beside([Task(p.name, [sys.executable, "-c", code, str(p)], tmp_path / "log") for p in pids]):
        until = time.monotonic() + 20
        while not all(p.exists() and p.read_text() for p in pids) and time.monotonic() < until:
            time.sleep(0.01)
    for p in pids:
        assert not Path("/proc", p.read_text()).exists()


@pytest.mark.parametrize(("micro", "rows"), [(1, 1), (2, 2), (3, 2), (8, 2), (16, 16), (32, 16), (48, 16), (24, 2)])
def test_few_rows_with_the_kernels_of_many(micro: int, rows: int) -> None:
    assert kernel_check.rows_like(micro, 512, 512) == rows


@pytest.mark.parametrize("context", [100, 512, 1024, 2048, 16_384])
def test_as_few_rows_have_products_with_a_norm(context: int) -> None:
    """Where `micro` rows have tokens enough for them, and not where these have too few; no more rows than those."""
    for micro in range(1, 400):
        rows = kernel_check.rows_like(micro, context, 256)
        assert rows <= micro and (rows == 1) == (micro == 1) and (rows % 16 == 0) == (micro % 16 == 0)
        assert (rows * context >= SUM_NORM_ROWS) == (micro * context >= SUM_NORM_ROWS)


def test_it_calls_what_a_run_calls(tmp_path: Path) -> None:
    """On a CPU, where nothing is compiled: forward, backward, a checkpoint's loss and an evaluation pass."""
    compile_ahead.compile_kernels(make_run(tmp_path, "cosformer2", n_steps=3).spec(), torch.device("cpu"), 2)
