"""Trackers: what the real packages hold after kills is metrics.jsonl, and what goes wrong with one stays beside the
training. The extras of pip that are not installed are skipped."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from arch.errors import InputError
from data.files import read_json, write_json
from scaling.cli.submit import trackers_of_jobs
from scaling.rundir import tracking
from scaling.rundir.directory import RunDir
from scaling.rundir.lock import tracking_lock
from scaling.rundir.tracking import SENT, TRACKERS, Following, Tracked, check_trackers, failures, lacking, send_missing
from scaling.study import schema
from scaling.study.jobs_schema import Cluster
from tests.jobs.studies import GPUS

from ..small_runs import BATCH, EXACT, make_run, start, train

Shown = dict[int, list[dict[str, float]]]  # by step, each time that it was sent


def tracked_run(tmp_path: Path, *trackers: str, **how: Any) -> RunDir:
    rundir = make_run(tmp_path, **how)
    record = rundir.record()
    write_json(rundir.run_json, record | {"spec": record["spec"] | {"tracking": list(trackers)}})
    return rundir


def of_tensorboard(folder: Path, rundir: RunDir) -> Shown:
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    steps: Shown = defaultdict(list)
    for path in sorted((folder / "tensorboard" / rundir.path.name).iterdir()):
        for event in LegacyEventFileLoader(str(path)).Load():
            if event.summary.value:
                steps[event.step].append({value.tag: value.simple_value for value in event.summary.value})
    return steps


def of_wandb(folder: Path, rundir: RunDir) -> Shown:
    """Its file is a log of LevelDB: blocks of 32 KiB, records with a header of crc, length and kind."""
    from wandb.proto.wandb_internal_pb2 import Record

    steps: Shown = defaultdict(list)
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    content, at, record = path.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        record += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or its last part
            made, record = Record.FromString(record), b""
            if made.WhichOneof("record_type") == "history":
                items = made.history.item
                row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in items}
                steps[int(row["_step"])].append({key: row[key] for key in SENT if key in row})
    return steps


def of_mlflow(folder: Path, rundir: RunDir) -> Shown:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow/mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("study").experiment_id])
    assert (run.info.run_name, run.info.status) == (rundir.path.name, "FINISHED")
    assert run.data.params["training.lr"] == "0.003" and run.data.params["arch"] == "llama"
    steps: Shown = defaultdict(list)
    for key in SENT:
        seen: dict[int, int] = defaultdict(int)
        for metric in client.get_metric_history(run.info.run_id, key):
            rows, at = steps[metric.step], seen[metric.step]
            seen[metric.step] += 1
            rows.extend({} for _ in range(at + 1 - len(rows)))
            rows[at][key] = metric.value
    return steps


def of_trackio(folder: Path, rundir: RunDir) -> Shown:
    steps: Shown = defaultdict(list)
    with sqlite3.connect(folder / "trackio/study.db") as store:
        assert store.execute("select count(distinct run_name) from metrics").fetchone() == (1,)
        for step, metrics in store.execute("select step, metrics from metrics"):
            steps[step].append({key: value for key, value in json.loads(metrics).items() if key in SENT})
    return steps


READERS: dict[str, Callable[[Path, RunDir], Shown]] = {
    "tensorboard": of_tensorboard,
    "wandb": of_wandb,
    "mlflow": of_mlflow,
    "trackio": of_trackio,
}


def sent(name: str, folder: Path) -> int:
    """A step up to which rows are there; of a tracker whose files are written anew, as soon as they have any."""
    file = {"mlflow": "mlflow/mlflow.db", "trackio": "trackio/study.db"}.get(name)
    if file is None:
        files = {"tensorboard": "tensorboard/*/events*", "wandb": "wandb/offline-run-*/*.wandb"}[name]
        return sum(path.stat().st_size > 1000 for path in folder.glob(files)) << 32
    with (
        suppress(sqlite3.OperationalError),
        closing(sqlite3.connect(f"file:{folder / file}?mode=ro", uri=True)) as store,
    ):
        return store.execute("select max(step) from metrics").fetchone()[0] or 0
    return 0


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_holds_metrics_jsonl_after_three_kills(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_spec(name) is None:
        pytest.skip(f"needs the extra {name}")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", "s3cret" * 7)
    n_steps, folder = 4800, tmp_path / "study" / "tracking"
    slow = {"size": "98k", "source": "synthetic:0:4800000", "state_every_tokens": 800 * BATCH}  # seconds apart
    rundir = tracked_run(tmp_path, name, n_steps=n_steps, checkpoint_tokens=[n_steps * BATCH], **slow)
    for _ in range(3):
        before, process, until = rundir.last_row(), start(rundir), time.monotonic() + 300
        while process.poll() is None and time.monotonic() < until:
            last_state = max((state.step for state in rundir.states(verify=False)), default=0)
            if rundir.last_row() != before and sent(name, folder) > last_state:  # a restart could double rows
                break
            time.sleep(0.1)
        assert process.poll() is None, process.communicate()
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    code, out, err = train(rundir)
    assert code == 0 and "tracking" not in out, out + err
    rows, shown = rundir.checked_rows().rows, READERS[name](folder, rundir)
    assert [row["step"] for row in rows] == list(range(1, n_steps + 1)) == sorted(shown)
    assert all(len(same) == 1 for same in shown.values()), "a row is there twice"
    # what is written anew has the times of the last training too
    keys = SENT if name in ("tensorboard", "wandb") else [key for key in EXACT if key != "step"]
    as_kept = (lambda x: struct.unpack("f", struct.pack("f", x))[0]) if name == "tensorboard" else float
    for row in rows:
        assert [shown[row["step"]][0][key] for key in keys] == [as_kept(row[key]) for key in keys]
    ours = [path for path in (tmp_path / "study").rglob("*") if path.is_file()]
    assert not [path for path in ours if b"s3crets3cret" in path.read_bytes()]


def test_a_tracker_that_fails_is_named_and_the_run_is_trained(tmp_path: Path) -> None:
    package = tmp_path / "broken" / "tensorboard"
    package.mkdir(parents=True)
    url = "http://me:pa55@host:5000"
    (package / "__init__.py").write_text("import os\nraise SystemError('no answer of ' + os.environ['WANDB_URL'])\n")
    rundir = tracked_run(tmp_path, "tensorboard")
    path = os.pathsep.join([str(package.parent), os.environ.get("PYTHONPATH", "")])
    code, out, err = train(rundir, PYTHONPATH=path, WANDB_URL=url)
    line = "tracking: tensorboard failed for 1 run (llama-14k): SystemError: no answer of $WANDB_URL"
    assert code == 0 and f"llama-14k: {line}\n" in out, out + err
    assert failures([rundir]) == [line] and rundir.status()["state"] == "done"
    assert url not in (rundir.path / "tracking" / "state.json").read_text()


def test_the_packages_that_a_study_asks_for_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"^tracking: wandb is not installed here: pip install 'linear-scaling\[wandb"):
        check_trackers(["wandb"])
    check_trackers([])
    assert trackers_of_jobs([], Cluster(**GPUS)) == []
    with pytest.raises(InputError, match="wandb is not installed here"):  # jobs train by this Python
        trackers_of_jobs(["wandb"], Cluster(**GPUS))
    for there in ({"python": "/shared/python"}, {"by_kind": {"train": {"container": ["apptainer", "exec"]}}}):
        (line,) = trackers_of_jobs(["wandb"], Cluster(**GPUS, **there).of_kind("train"))
        assert "wandb is not installed here" in line and "where the jobs' own Python is" in line


def test_every_tracker_of_a_study_file_is_there() -> None:
    assert tuple(TRACKERS) == schema.TRACKERS


class Sheet:
    """A tracker that keeps its rows as mlflow and trackio do; the write of `breaks` raises."""

    rows: list[dict[str, Any]]
    breaks: int | None

    def __init__(self, run: Tracked) -> None:
        self.last = self.rows[-1]["step"] if self.rows else 0

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        for row in rows:
            if row["step"] == self.breaks:
                type(self).breaks = None
                raise OSError("http://me:pa55@host does not answer")
            self.rows.append(row)

    def close(self, state: str) -> None:
        self.state = state


@pytest.fixture
def sheet(monkeypatch: pytest.MonkeyPatch) -> type[Sheet]:
    Sheet.rows, Sheet.breaks = [], None
    monkeypatch.setitem(TRACKERS, "mlflow", Sheet)
    monkeypatch.setattr(tracking, "EVERY_S", 0.01)
    monkeypatch.setattr(tracking, "AGAIN_S", 0.01)
    return Sheet


def follow(rundir: RunDir, seconds: float = 0.0) -> None:
    with tracking_lock(rundir.path / "tracking"):
        following = Following(rundir)
        threading.Timer(seconds, following.ended.set).start() if seconds else following.ended.set()
        following.work()


def test_rows_go_on_where_they_were_and_a_torn_row_is_none(tmp_path: Path, sheet: type[Sheet]) -> None:
    rundir = tracked_run(tmp_path, "mlflow")
    lines = [json.dumps({"step": s, "n_tokens": s * BATCH, "loss": 2.5}) + "\n" for s in range(1, 8)]
    rundir.metrics.write_text("".join(lines[:5]) + lines[5][:-3])
    follow(rundir)
    identity = read_json(rundir.path / "tracking" / "state.json")["identity"]
    rundir.metrics.write_text("".join(lines[:3]))  # cut back, as a run does that goes on
    follow(rundir)
    assert [row["step"] for row in sheet.rows] == [1, 2, 3, 4, 5]
    rundir.metrics.write_text("".join(lines))
    follow(rundir)
    assert [row["step"] for row in sheet.rows] == [1, 2, 3, 4, 5, 6, 7]
    state, path = read_json(rundir.path / "tracking" / "state.json"), rundir.path / "tracking" / "state.json"
    rundir.write_status("done", 7, 7 * BATCH, None, None)
    assert not failures([rundir])
    write_json(path, state | {"mlflow": {"failed": None}})  # as one whose process was killed leaves it
    assert failures([rundir])[0].endswith("(llama-14k): rows are missing: `scaling run` sends them")
    assert state["identity"] == identity and state["mlflow"] == {"step": 7, "failed": None}


def test_a_tracker_that_failed_is_tried_again(tmp_path: Path, sheet: type[Sheet]) -> None:
    sheet.breaks = 3
    rundir = tracked_run(tmp_path, "mlflow")
    rundir.metrics.write_text("".join(f'{{"step": {s}, "n_tokens": 9, "loss": 2.5}}\n' for s in range(1, 6)))
    follow(rundir)
    assert failures([rundir, rundir]) == [
        "tracking: mlflow failed for 2 runs (llama-14k, ..): OSError: http://host does not answer"
    ]
    sheet.rows, sheet.breaks = [], 3
    follow(rundir, 0.5)
    assert [row["step"] for row in sheet.rows] == [1, 2, 3, 4, 5] and not failures([rundir])


def test_a_tracker_that_hangs_is_left_behind(
    tmp_path: Path, sheet: type[Sheet], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "PATIENCE_S", 0.2)
    monkeypatch.setattr(sheet, "write", lambda *_: threading.Event().wait())
    rundir = tracked_run(tmp_path, "mlflow")
    rundir.metrics.write_text('{"step": 1, "n_tokens": 9, "loss": 2.5}\n')
    follow(rundir)
    assert "rows are not sent" in failures([rundir])[0]


def test_what_trained_runs_lack_is_sent_later(tmp_path: Path) -> None:
    """The package is missing: one run is tried, and of an untracked run nothing."""
    if find_spec("trackio") is not None:
        pytest.skip("the extra trackio is installed")
    plain = make_run(tmp_path, name="plain")
    first, second = (tracked_run(tmp_path, "trackio", name=name) for name in ("first", "second"))
    for rundir in (plain, first, second):
        rundir.metrics.write_text('{"step": 1, "n_tokens": 9, "loss": 2.5}\n')
        assert not lacking(rundir), "it is in training"
        rundir.write_status("done", 1, 9, None, None)
    assert [lacking(rundir) for rundir in (plain, first, second)] == [[], ["trackio"], ["trackio"]]
    send_missing([first, second])
    assert "No module named 'trackio'" in failures([plain, first, second])[0]
    assert [(rundir.path / "tracking").exists() for rundir in (plain, first, second)] == [False, True, False]
