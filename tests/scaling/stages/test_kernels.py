"""Whose kernels are compiled while others train, and that nothing of it stays behind."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import torch

from arch.kernel_config import SUM_NORM_ROWS
from jobs.local import beside
from jobs.workers import Task
from scaling.rundir.directory import RunDir
from scaling.stages.kernels import compile_tasks, compiled_ahead
from scaling.trainer import compile_ahead

from ..small_runs import make_run


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
    from jobs import local

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
    assert compile_ahead.rows_like(micro, 512, 512) == rows


@pytest.mark.parametrize("context", [100, 512, 1024, 2048, 16_384])
def test_as_few_rows_have_products_with_a_norm(context: int) -> None:
    """Where `micro` rows have tokens enough for them, and not where these have too few; no more rows than those."""
    for micro in range(1, 400):
        rows = compile_ahead.rows_like(micro, context, 256)
        assert rows <= micro and (rows == 1) == (micro == 1) and (rows % 16 == 0) == (micro % 16 == 0)
        assert (rows * context >= SUM_NORM_ROWS) == (micro * context >= SUM_NORM_ROWS)


def test_it_calls_what_a_run_calls(tmp_path: Path) -> None:
    """On a CPU, where nothing is compiled: forward, backward, a checkpoint's loss and an evaluation pass."""
    compile_ahead.compile_kernels(make_run(tmp_path, "cosformer2", n_steps=3).spec(), torch.device("cpu"), 2)
