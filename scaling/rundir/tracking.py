"""Trackers: TensorBoard, Weights & Biases, MLflow and Trackio show a run's rows while it trains.

The trainer starts `python -m scaling.rundir.tracking RUN_DIR` beside itself (Follower), which reads metrics.jsonl as it
grows and hands each row on. Nothing that a tracker does reaches the training: one that fails or hangs is recorded in
<run>/tracking/state.json and tried again. The process ends when its standard input does: when the trainer has ended,
however it did.

A restart doubles no row: a tracker knows the step up to which it has rows (`last`), and only later ones are sent; files
of the study are written anew. Where rows go, and by which secrets, is for the packages' own environment variables to
say (WANDB_MODE, MLFLOW_TRACKING_URI, ..); without these they go to files below <study>/tracking. Imports no torch.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from arch.amounts import counted
from arch.arguments import Parser
from arch.errors import InputError
from data.files import read_object, write_json

from .directory import ENDED, RunDir
from .launcher import alone
from .lock import TRACKING_S, is_locked, tracking_lock
from .metrics import NUMBERS, read_row

Row = dict[str, Any]
SENT = ("n_tokens", *NUMBERS)  # columns of a row
EVERY_S = 2.0  # between two looks at metrics.jsonl
AGAIN_S = 60.0  # until a tracker that failed is tried again
PATIENCE_S = 60.0  # for trackers to send what is left once the training has ended
CHUNK = 1 << 20  # bytes of metrics.jsonl that are sent at once
MLFLOW_ROWS = 1000 // len(SENT)  # of a request, which takes 1000 numbers
SECRET = re.compile(r"WANDB_|MLFLOW_|TRACKIO_|.*(KEY|TOKEN|SECRET|PASSWORD)")  # names of environment variables
LONGEST_REASON = 300  # characters


@dataclass(frozen=True)
class Tracked:
    """What a tracker is given of a run. identity: of this run directory alone; folder: for the files of all trackers of
    the study; settings: of the model and its training, by name."""

    study: str
    run_id: str
    identity: str
    folder: Path
    settings: Mapping[str, Any]


class Tracker(Protocol):
    """Where rows go. last: the last step that is there already."""

    last: int

    def __init__(self, run: Tracked) -> None: ...

    def write(self, rows: Sequence[Row]) -> None:
        """Send rows, by ascending steps."""

    def close(self, state: str) -> None:
        """Send what is left; state: of the run, as in status.json."""


class TensorBoard:
    """Event files, whose numbers are float32 (its fast reader shows no others), written anew."""

    last = 0

    def __init__(self, run: Tracked) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = run.folder / "tensorboard" / run.run_id
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._writer = EventFileWriter(str(folder))

    def write(self, rows: Sequence[Row]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        for row in rows:
            values = [Summary.Value(tag=key, simple_value=value) for key, value in _numbers(row).items()]
            self._writer.add_event(Event(wall_time=time.time(), step=row["step"], summary=Summary(value=values)))
        self._writer.flush()

    def close(self, state: str) -> None:
        self._writer.close()


class Wandb:
    """A run of Weights & Biases: offline (WANDB_MODE) its files are written anew, online it goes on."""

    def __init__(self, run: Tracked) -> None:
        import wandb

        run.folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or run.study,
            id=run.identity,
            name=run.run_id,
            dir=os.environ.get("WANDB_DIR") or str(run.folder),
            config=dict(run.settings),
            resume="allow",
            reinit="finish_previous",
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),  # they are of this process
        )
        own = Path(self._run.settings.sync_dir)
        for old in own.parent.glob(f"offline-run-*-{run.identity}"):
            if old != own:
                shutil.rmtree(old)
        self.last = self._run.step - 1 if self._run.resumed else 0

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._run.log(_numbers(row), step=row["step"])

    def close(self, state: str) -> None:
        self._run.finish(exit_code=int(state == "failed"))


class Mlflow:
    """A run of MLflow, in the experiment of the study's name; without a server in <study>/tracking/mlflow/mlflow.db."""

    def __init__(self, run: Tracked) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        store = run.folder / "mlflow"
        with tracking_lock(store):  # its first user makes the tables
            self._client = client = MlflowClient(
                os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{store.absolute() / 'mlflow.db'}"
            )
            experiment = client.get_experiment_by_name(run.study)
            where = experiment.experiment_id if experiment else client.create_experiment(run.study)
        there = client.search_runs([where], f"tags.run_directory = '{run.identity}'")
        if there:
            self._id = there[0].info.run_id
            client.update_run(self._id, "RUNNING")
        else:
            made = client.create_run(where, tags={"run_directory": run.identity}, run_name=run.run_id)
            self._id = made.info.run_id
            client.log_batch(self._id, params=[Param(key, str(value)) for key, value in run.settings.items()])
        self.last = max((metric.step for metric in client.get_metric_history(self._id, "loss")), default=0)

    def write(self, rows: Sequence[Row]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        for begin in range(0, len(rows), MLFLOW_ROWS):  # all of a request or nothing is written
            part = rows[begin : begin + MLFLOW_ROWS]
            metrics = [Metric(key, value, now, row["step"]) for row in part for key, value in _numbers(row).items()]
            self._client.log_batch(self._id, metrics=metrics)

    def close(self, state: str) -> None:
        self._client.set_terminated(self._id, {"done": "FINISHED", "failed": "FAILED"}.get(state, "KILLED"))


class Trackio:
    """A run of Trackio; without a Space or a server in <study>/tracking/trackio."""

    def __init__(self, run: Tracked) -> None:
        os.environ.setdefault("TRACKIO_DIR", str(run.folder.absolute() / "trackio"))  # read when it is imported
        import trackio

        name = f"{run.run_id} {run.identity[:4]}"  # by which it finds a run again
        quiet = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}  # they are of this process
        self._run = trackio.init(run.study, name, config=dict(run.settings), resume="allow", **quiet)
        self.last = self._run._next_step - 1

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._run.log(_numbers(row), step=row["step"])

    def close(self, state: str) -> None:
        self._run.finish()


TRACKERS: dict[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "mlflow": Mlflow,
    "trackio": Trackio,
}


def _numbers(row: Row) -> dict[str, float]:
    return {key: row[key] for key in SENT if key in row}


class Follower:
    """The process that follows the rows of the run at `rundir`, whose metrics.jsonl is there. Where it cannot be
    started, or ends too soon, rows are missing, which `failures` says."""

    def __init__(self, rundir: RunDir) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._deadline = float("inf")
        with suppress(OSError):
            self._process = subprocess.Popen(
                [sys.executable, "-m", "scaling.rundir.tracking", str(rundir.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,  # what packages print may hold secrets
                stderr=subprocess.DEVNULL,
                env=alone(os.environ) | {"CUDA_VISIBLE_DEVICES": ""},
            )

    def end(self) -> None:
        """Have it send what is left, and end."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._deadline = time.monotonic() + TRACKING_S

    @property
    def is_at_work(self) -> bool:
        """Whether it still runs; after `end` for a limited time."""
        if self._process is None:
            return False
        if time.monotonic() > self._deadline:
            self._process.kill()
        return self._process.poll() is None


def check_trackers(trackers: Iterable[str]) -> None:
    """Raise InputError where the package of one is not installed."""
    for name in trackers:
        if find_spec(name) is None:
            raise InputError(
                f"tracking: {name} is not installed here: pip install 'linear-scaling[{name}]', or leave it out of "
                f"tracking"
            )


def lacking(rundir: RunDir) -> list[str]:
    """The trackers that lack rows of a run whose training has ended."""
    last, state = rundir.last_row(), _state(rundir)
    if last is None or rundir.status()["state"] not in ENDED or is_locked(rundir.path / "tracking"):
        return []
    wanted = rundir.record()["spec"].get("tracking", [])
    return [name for name in wanted if state.get(name, {}).get("step") != last["step"]]


def send_missing(rundirs: Iterable[RunDir]) -> None:
    """Send what trackers lack of these runs, run by run, until one fails."""
    for rundir in rundirs:
        follower = Follower(rundir)
        follower.end()
        while follower.is_at_work:
            time.sleep(0.1)
        if lacking(rundir):
            return


def failures(rundirs: Iterable[RunDir]) -> list[str]:
    """A line for each tracker and reason for which it failed last, or lacks rows, with the runs."""
    runs: dict[tuple[str, str], list[str]] = {}
    for rundir in rundirs:
        if state := _state(rundir):
            missing = dict.fromkeys(lacking(rundir), "rows are missing: `scaling run` sends them")
            failed = {
                name: about["failed"] for name, about in state.items() if name in TRACKERS and about.get("failed")
            }
            for name, why in (missing | failed).items():
                runs.setdefault((name, str(why)), []).append(rundir.path.name)
    return [
        f"tracking: {name} failed for {counted(len(ids), 'run')} ({ids[0]}{', ..' * (len(ids) > 1)}): {why}"
        for (name, why), ids in runs.items()
    ]


def _state(rundir: RunDir) -> dict[str, Any]:
    """What trackers have of a run: {tracker: {"step": the last that was sent, "failed": why it failed last, or null}},
    and `identity`."""
    try:
        return read_object(rundir.path / "tracking" / "state.json")
    except (OSError, ValueError):
        return {}


class Following:
    """The trackers of the run at `rundir`, each with a thread of its own, until `ended` is set."""

    def __init__(self, rundir: RunDir) -> None:
        self.rundir, self.ended = rundir, threading.Event()
        self._state, self._lock = _state(rundir), threading.Lock()
        self._state.setdefault("identity", secrets.token_hex(6))
        self._write()  # before anything is sent under it
        spec = (record := rundir.record())["spec"]
        settings = {key: spec[key] for key in ("arch", "size", "seed")} | {"spec_hash": record["spec_hash"]}
        settings["n_params"] = record["cost"]["n_params"]
        for part in ("model", "training"):
            settings |= {f"{part}.{key}": value for key, value in spec[part].items() if value is not None}
        folder = rundir.study / "tracking"
        self._run = Tracked(record["study"], record["run_id"], self._state["identity"], folder, settings)
        self._threads = {
            name: threading.Thread(target=self._follow, args=(name,), daemon=True) for name in spec["tracking"]
        }

    def work(self) -> None:
        """Follow the rows; once `ended` is set, for a limited time."""
        for thread in self._threads.values():
            thread.start()
        self.ended.wait()
        deadline = time.monotonic() + PATIENCE_S
        for name, thread in self._threads.items():
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self._record(name, failed=f"rows are not sent {PATIENCE_S:.0f} s after the training ended")

    def _follow(self, name: str) -> None:
        tracker: Tracker | None = None
        due = 0.0
        while True:
            over = self.ended.is_set()  # asked before the rows are read, of which no more come then
            again = time.monotonic() >= due and not (over and due)  # the end waits for no tracker that failed
            if tracker is not None or again:
                try:
                    if tracker is None:
                        tracker = TRACKERS[name](self._run)
                        step, file = tracker.last, open(self.rundir.metrics, "rb")  # noqa: SIM115 (until the end)
                    for rows in _new_rows(file):
                        if later := [row for row in rows if row["step"] > step]:
                            tracker.write(later)
                            step = later[-1]["step"]
                    if over:
                        tracker.close(self.rundir.status()["state"])
                        self._record(name, step=step)
                    self._record(name, failed=None)
                except Exception as error:  # whatever the package raises
                    tracker, due = None, time.monotonic() + AGAIN_S
                    self._record(name, failed=_reason(error))
            if over:
                return
            self.ended.wait(EVERY_S)

    def _record(self, name: str, **about: Any) -> None:
        with self._lock:
            before = self._state.get(name, {})
            if before | about != before:
                self._state[name] = before | about
                self._write()

    def _write(self) -> None:
        write_json(self.rundir.path / "tracking" / "state.json", self._state, kind="tracking")


def _new_rows(file: BinaryIO) -> Iterator[list[Row]]:
    """The whole rows from the file's position on, which moves behind them."""
    while True:
        begin = file.tell()
        *lines, _ = file.read(CHUNK).split(b"\n")
        file.seek(begin + sum(len(line) + 1 for line in lines))
        if not lines:
            return
        yield [row for line in lines if (row := read_row(line)[0]) is not None]


def _reason(error: Exception) -> str:
    """What went wrong, in one line without secrets."""
    text = f"{type(error).__name__}: {error}"
    for name, value in os.environ.items():
        if len(value) > 3 and SECRET.match(name):
            text = text.replace(value, f"${name}")
    return " ".join(re.sub(r"://[^/@\s]*@", "://", text).split())[:LONGEST_REASON]


def _await_end(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


def main(arguments: list[str] | None = None) -> int:
    parser = Parser("python -m scaling.rundir.tracking", "Send the rows of a run to its trackers.")
    parser.add_argument("run_dir", type=Path, help="a directory with run.json; it ends at the end of standard input")
    rundir = RunDir(parser.parse_args(arguments).run_dir)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):  # the trainer's, which ends in order
        signal.signal(number, signal.SIG_IGN)
    os.nice(10)
    with tracking_lock(rundir.path / "tracking"):
        following = Following(rundir)
        threading.Thread(target=_await_end, args=(following.ended,), daemon=True).start()
        following.work()
    os._exit(0)  # threads that hang are left behind


if __name__ == "__main__":
    main()
