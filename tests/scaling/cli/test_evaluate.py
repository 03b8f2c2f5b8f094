"""`scaling eval` as people and schedulers start it: 20 checkpoints x 6 tasks, workers killed, failures, mistakes."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pandas as pd
import pytest

from analysis.claims import claimed
from data.files import MANIFEST, read_json, write_json
from scaling.cli.evaluation import ALL, EvalProgress, eval_matrix, expected_seconds
from scaling.cli.main import main
from scaling.cli.request import Request
from scaling.study.cost import expected_work
from scaling.study.spec import load_study
from tests.analysis.evals.small_study import write_study
from tests.analysis.evals.tiny_tasks import HERE
from tests.commands import ROOT, alive, in_this_process
from tests.scaling import forks

TASKS = ("validation", "perplexity", *(f"{HERE}:{name}" for name in ("slow", "one", "two", "three")))
EVALUATION = (
    "evaluation:\n"
    "  validation_tokens: 1024\n"
    f"  tasks: [{', '.join(repr(name) for name in TASKS[1:])}]\n"
    "  data: DATA\n"
    f"  settings: {{perplexity: {{file: text.txt}}, '{HERE}:slow': {{seconds: 0.05}}}}"
)
N_PAIRS = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of 4 runs with 5 checkpoints each and 6 tasks."""
    folder = tmp_path_factory.mktemp("matrix")
    (folder / "text.txt").write_text("To be, or not to be: that is the question. " * 20)
    write_study(folder, steps=5, sizes="14k, 25k", more=EVALUATION.replace("DATA", str(folder)))
    return folder


def words(folder: Path, *arguments: str, out: str = "out", name: str = "study", file: str = "small.yaml") -> list[str]:
    return ["scaling", "eval", name, str(folder / file), "--out", str(folder / out), *arguments]


@pytest.fixture(autouse=True)
def own_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands that tests start find the tests' own tasks."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def scaling_eval(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess(arguments, *forks.run(*words(folder, *arguments, **more)))


def quickly(*words: object) -> subprocess.CompletedProcess[str]:
    """What needs no workers."""
    return in_this_process(main, *words)


def results(folder: Path, out: str = "out") -> dict[str, int]:
    """Every result with its time of writing."""
    home = folder / out / "small" / "runs"
    return {str(path.relative_to(home)): path.stat().st_mtime_ns for path in home.glob("*/evals/*/*.json")}


def values(folder: Path, out: str) -> dict[str, object]:
    home = folder / out / "small" / "runs"
    return {path: read_json(home / path)["values"] for path in results(folder, out)}


def worker_pids(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def wait_for(folder: Path, n: int) -> None:
    deadline = time.monotonic() + 600
    while len(results(folder)) < n:
        assert time.monotonic() < deadline, f"only {len(results(folder))} of {n} results"
        time.sleep(0.1)


@pytest.mark.slow
def test_a_matrix_survives_kill_9_and_is_never_done_twice(folder: Path) -> None:
    shutil.copytree(folder / "out", folder / "alone")
    # no checkpoint of the run that comes last gets ready: 3 workers reach the 90 results of the others, not all
    last = min(load_study(folder / "small.yaml").runs(), key=expected_work).config
    environment = os.environ | {"TINY_WAIT": f"{last.arch} {last.d_model}"}
    with open(folder / "first.log", "ab") as log:
        first = subprocess.Popen(
            forks.command(*words(folder, "--workers", "4")),
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    wait_for(folder, 30)
    workers = worker_pids(first.pid)
    assert len(workers) == 4
    os.kill(workers[1], signal.SIGKILL)
    wait_for(folder, 60)  # the others go on
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    while any(map(alive, workers)):  # they die with their parent
        time.sleep(0.02)
    before = results(folder)
    assert 60 <= len(before) < N_PAIRS

    second = scaling_eval(folder, "--workers", "2")  # fewer than began
    assert second.returncode == 0, second.stdout + second.stderr
    assert f"eval: {N_PAIRS - len(before)} of {N_PAIRS} evaluations to do" in second.stdout
    assert f"eval: {N_PAIRS - len(before)} done" in second.stdout
    after = results(folder)
    assert len(after) == N_PAIRS and before.items() <= after.items(), "what was done is not touched"
    left = [p.name for p in (folder / "out").rglob("*") if "claim" in p.name or p.name.endswith((".tmp", ".failed"))]
    assert not left

    alone = scaling_eval(folder, "--workers", "1", out="alone")
    assert alone.returncode == 0, alone.stderr
    assert values(folder, "out") == values(folder, "alone")
    tables = [pd.read_parquet(folder / out / "small/results/evals.parquet") for out in ("out", "alone")]
    pd.testing.assert_frame_equal(*tables, check_exact=True)
    assert list(tables[0].columns) == ["run_id", "step", "n_tokens", "task", "metric", "value"]
    assert set(tables[0]["task"]) == {name.rpartition(":")[2] for name in TASKS}


def test_a_second_start_has_nothing_to_do(folder: Path) -> None:
    assert scaling_eval(folder).returncode == 0
    before, table = results(folder), folder / "out/small/results/evals.parquet"
    stamp = table.stat().st_mtime_ns
    study = (folder / "small.yaml", "--out", folder / "out")
    again = quickly("eval", "study", *study, "--json")
    assert again.returncode == 0
    computed = json.loads(again.stdout)
    assert (computed["pairs"], computed["done"], computed["n_failed"], computed["failed"]) == (N_PAIRS, 0, 0, {})
    assert results(folder) == before and table.stat().st_mtime_ns == stamp
    dry = json.loads(quickly("eval", "study", *study, "--dry-run", "--json").stdout)
    assert dry["pairs"] == N_PAIRS and all(not names for names in dry["missing"].values())


def test_the_time_left_is_the_expected_one_until_something_is_done(folder: Path) -> None:
    request = Request(load_study(folder / "small.yaml", [], folder / "out"))
    pairs = eval_matrix(request).pairs
    done, known, unknown = (
        next(pair for pair in pairs if pair.task.name == name) for name in (TASKS[0], TASKS[1], "one")
    )
    assert done.stored() is not None
    seconds = expected_seconds(request, ALL, [done, known, unknown])
    assert seconds[unknown] == pytest.approx((seconds[done] + seconds[known]) / 2)
    progress = EvalProgress({done: 60.0, known: 120.0}, 2, "mine")
    progress.refresh = lambda: None
    assert progress.line() == "eval: 0/2 done, 0 s of about 1.50 min"
    progress.open, progress.done = [known], {done: done.stored()}
    progress._begun -= 30
    assert progress.line() == "eval: 1/2 done, 1.00 min left"


def test_choices_of_tasks_checkpoints_and_runs(folder: Path) -> None:
    """Each worker mode start takes its share without a lock, as a scheduler's array elements do."""
    tasks = ("--tasks", f"{HERE}:four")
    with claimed(folder / "out/small/runs/tnl-14k-c32-s0/evals/00000003", "four"):  # somebody is at this one
        share = [word for step in (3, 4) for word in ("--checkpoint", f"tnl-14k-c32-s0/{step}")]
        element = scaling_eval(folder, *tasks, *share, name="worker")
    assert element.returncode == 0, element.stderr
    assert re.findall(r"^(\S+) four: done$", element.stdout, re.MULTILINE) == ["tnl-14k-c32-s0/00000004"]
    last = scaling_eval(folder, *tasks, "--checkpoints", "last", "--only", "arch=llama,size=14k", "--json")
    assert last.returncode == 0, last.stderr
    assert json.loads(last.stdout)["done"] == 1
    assert {path for path in results(folder) if path.endswith("four.json")} == {
        "tnl-14k-c32-s0/evals/00000004/four.json",
        "llama-14k-c32-s0/evals/00000005/four.json",
    }
    whole = scaling_eval(
        folder, *tasks, "--checkpoint", "tnl-25k-c32-s0", "--checkpoint", "tnl-25k-c32-s0/3", name="worker"
    )
    assert whole.returncode == 0 and whole.stdout.count(" four: done") == 5
    wrong = quickly(*words(folder, *tasks, "--checkpoint", "tnl-14k", name="worker")[1:])
    assert wrong.returncode == 2 and "did you mean 'tnl-14k-c32-s0'?" in wrong.stderr


def test_failures_are_shown_counted_and_do_not_stop_the_others(folder: Path) -> None:
    shutil.copytree(folder / "out", folder / "bad", dirs_exist_ok=True)
    home = folder / "bad/small/runs"
    for path in home.glob("*/evals"):
        shutil.rmtree(path)
    weights = home / "llama-14k-c32-s0/checkpoints/00000002/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x00")  # the size fits
    manifest = home / "llama-14k-c32-s0/checkpoints/00000003" / MANIFEST
    write_json(manifest, read_json(manifest) | {"probe_loss": 1.0})
    (home / "llama-14k-c32-s0/checkpoints/00000004" / MANIFEST).unlink()
    (folder / "bad.yaml").write_text((folder / "small.yaml").read_text().replace("file: text.txt", "file: gone.txt"))
    tasks = ("--tasks", f"validation,perplexity,{HERE}:one", "--only", "arch=llama,size=14k")
    result = scaling_eval(folder, *tasks, out="bad", file="bad.yaml")
    assert result.returncode == 1, result.stderr
    computed = result.stderr.splitlines()
    assert computed[0].startswith("failed: llama-14k-c32-s0/00000004: it is damaged (a file is missing or has another")
    assert computed[1].startswith("failed: perplexity: ") and "gone.txt does not exist" in computed[1]
    assert (
        computed[2].startswith("failed: llama-14k-c32-s0/00000002 validation and 1 more: ")
        and "is damaged" in computed[2]
    )
    assert (
        computed[3].startswith("failed: llama-14k-c32-s0/00000003 validation and 1 more: ")
        and "probe loss" in computed[3]
    )
    assert computed[4:] == ["error: 11 of 15 evaluations are not done"]  # perplexity at 4, two tasks at 2, three at 1
    assert len(list(home.glob("*/evals/*/*.json"))) == 4
    # and again: nothing is evaluated twice, what failed is tried again
    again = scaling_eval(folder, *tasks, out="bad", file="bad.yaml")
    assert again.returncode == 1 and "eval: 4 of 15 evaluations to do" in again.stdout
    assert again.stderr.splitlines()[-1] == computed[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tasks", "validation,perplexty"], "did you mean 'perplexity'?"),
        (
            ["--tasks", "extrapolate", "--set", "evaluation.settings={extrapolate: {lenghts: [3]}}"],
            "did you mean 'lengths'?",
        ),
        (["--set", "evaluation.settings={validation: {batch_rows: 3}}"], "write evaluation.validation_tokens"),
    ],
)
def test_mistakes_are_one_line(folder: Path, arguments: list[str], message: str) -> None:
    result = quickly("eval", "study", folder / "small.yaml", "--out", folder / "out", *arguments, "--dry-run")
    assert result.returncode == 2 and message in result.stderr and result.stderr.count("\n") == 1, result.stderr


def test_the_list_of_tasks() -> None:
    text = quickly("eval", "list").stdout
    assert all(f"\n{name} " in f"\n{text}" for name in ("validation", "perplexity", "extrapolate"))
    computed = json.loads(quickly("eval", "list", "--json").stdout)
    assert {"task", "about", "needs", "layout"} == computed["tasks"][0].keys()
    rows = quickly("eval", "list", "--rows", "piqa").stdout
    assert rows.startswith("piqa: piqa/validation.jsonl") and "label: Literal[0, 1] (0: sol1)" in rows
    own = json.loads(quickly("eval", "list", "--rows", "perplexity-mine", "--json").stdout)["tasks"]
    assert [task["task"] for task in own] == ["perplexity-mine"]
    outside = quickly("eval", "list", "--rows", "json:one", "--json")
    assert outside.returncode == 2 and "'json:one' is from another package" in outside.stderr
