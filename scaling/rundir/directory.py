"""A run's directory: where its files are, and readers that take only what is whole. Imports no torch.

run.json               what the run is (prepare_run)       metrics.jsonl      one row a logged step
status.json            how far it came                     checkpoints/<step> weights, with manifest
state/<step>           training state (DeepSpeed's), for resume       evals/<step>/<task>.json
merged/<step>          the mean of the last weights, and of it        merged-evals/<step>/<task>.json
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from arch.config import ModelConfig
from arch.errors import InputError
from data.files import read_json, read_manifest, remove_unfinished, write_json

from ..study.earlier import training_of_today
from ..study.merging import is_as_asked
from ..study.run import RunSpec
from ..study.schedule import decay_start
from ..study.training import Training
from .lock import is_locked
from .metrics import Rows, checked_rows, read_row
from .owner import attempts
from .saved import Checkpoint, Saved

SCHEMA = 1
Known = Callable[[str, list[str]], bool]  # of a corpus, by fingerprint and source


class RunDir:
    """The directory of one run, by path; it need not exist yet."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.run_json = self.path / "run.json"
        self.metrics = self.path / "metrics.jsonl"
        self.status_json = self.path / "status.json"
        self.log = self.path / "train.log"

    def __repr__(self) -> str:
        return f"RunDir({str(self.path)!r})"

    @property
    def study(self) -> Path:
        """The study's directory, which holds the corpus."""
        return self.path.parent.parent

    def checkpoint(self, step: int) -> Path:
        return self.path / "checkpoints" / f"{step:08d}"

    def merged(self, step: int) -> Path:
        return self.path / "merged" / f"{step:08d}"

    def has_merged(self, step: int, training: Training) -> bool:
        """Whether the merged weights after `step` are there and of the steps that `training` asks for."""
        manifest = read_manifest(self.merged(step), verify=False, partial=True)
        return manifest is not None and is_as_asked(manifest.get("merged", {}).get("steps"), step, training)

    def state(self, step: int) -> Path:
        return self.path / "state" / f"{step:08d}"

    def evaluation(self, step: int, task: str = "validation") -> Path:
        return self.path / "evals" / f"{step:08d}" / f"{task}.json"

    def record(self) -> dict[str, Any]:
        """run.json. Raises InputError where there is none, or it is damaged."""
        try:
            record = read_json(self.run_json)
        except FileNotFoundError:
            raise InputError(
                f"{self.run_json}: does not exist; prepare the run with `scaling train --prepare`"
            ) from None
        except (OSError, ValueError) as error:
            raise InputError(f"{self.run_json}: cannot be read ({error}); remove the run directory") from None
        if not isinstance(record, dict) or record.get("schema") != SCHEMA or "spec" not in record:
            raise InputError(f"{self.run_json}: is no run of schema {SCHEMA}; remove the run directory")
        return record

    def spec(self) -> RunSpec:
        """The run, its architecture's plugin imported. Raises InputError where that cannot be, and where run.json is
        missing or damaged, or another version's."""
        try:
            return RunSpec.model_validate(self.record()["spec"])
        except ValidationError as error:
            found = error.errors(include_url=False)[0]
            key = ".".join(map(str, found["loc"]))
            if key == "plugins" and found["type"] == "value_error":
                raise InputError(f"{self.run_json}: {found['ctx']['error']}") from None
            raise InputError(
                f"{self.run_json}: spec.{key}: {found['msg']}; it was changed, or written by another version: remove "
                f"the run directory"
            ) from None

    def hashes(self, run: RunSpec) -> tuple[str, ...]:
        """Every hash that files of `run` in this directory may carry: its own, and that under which an earlier version
        wrote it down, perhaps with its text at another place."""
        try:
            stored = self.spec()
        except InputError:
            return run.hashes
        return (*run.hashes, *stored.hashes) if stored.of_today.spec_hash == run.spec_hash else run.hashes

    def rows(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl; a last line without its newline was cut by a kill and is no row."""
        try:
            text = self.metrics.read_bytes()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]

    def checked_rows(self) -> Rows:
        """The rows of metrics.jsonl that this run can have written, and what else stands there. Raises InputError
        where run.json is missing or damaged."""
        spec = self.record()["spec"]
        try:
            training = spec["training"]
            batch, tokens, most = training["batch_tokens"], training["n_tokens"], training.get("max_steps")
            n_steps = -(-tokens // batch)
            begins_after = decay_start(Training.model_validate(training)) if spec.get("trunk") else 0
            return checked_rows(self.metrics, batch, min(n_steps, most or n_steps), begins_after)
        except (KeyError, TypeError, AttributeError, ZeroDivisionError, ValidationError):
            raise InputError(f"{self.run_json}: spec.training is damaged; remove the run directory") from None

    def last_row(self) -> dict[str, Any] | None:
        """The last whole row, without reading the rest; None where there is none near the end."""
        try:
            with open(self.metrics, "rb") as handle:
                size = handle.seek(0, os.SEEK_END)
                handle.seek(max(0, size - 4096))
                lines = handle.read().split(b"\n")
        except FileNotFoundError:
            return None
        rows = (read_row(line)[0] for line in lines[-2::-1])  # what follows the last newline is torn
        return next((row for row in rows if row is not None), None)

    def status(self) -> dict[str, Any]:
        """status.json, or the state "waiting" where the run has not begun."""
        waiting = {"state": "waiting", "step": 0, "n_tokens": 0, "reason": None, "last_checkpoint": None}
        try:
            return waiting | read_json(self.status_json)
        except (FileNotFoundError, ValueError, TypeError):  # TypeError: JSON, but no object
            return waiting

    def attempts(self) -> list[dict[str, Any]]:
        """What the processes that trained the run left, oldest first: started (Unix time), host, hardware, processes;
        none where one cannot be read."""
        try:
            return attempts(self.path)
        except (OSError, ValueError, TypeError):
            return []

    def checkpoints(self, verify: bool = True, partial: bool = False) -> list[Checkpoint]:
        """Checkpoints with a valid manifest, by step; `verify=False` compares sizes but computes no checksums;
        `partial`: those too whose weights were left out by a bundle."""
        return [Checkpoint(*found) for found in _whole(self.path / "checkpoints", verify, partial)]

    @property
    def weights_elsewhere(self) -> str:
        """Why the newest checkpoint's weights are not there, where a bundle left them out; else ""."""
        return next((one.left_out for one in self.checkpoints(verify=False, partial=True)[-1:]), "")

    def states(self, verify: bool = True) -> list[Saved]:
        """Training states with a valid manifest, by step."""
        return [Saved(*found) for found in _whole(self.path / "state", verify)]


def _whole(folder: Path, verify: bool, partial: bool = False) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The directories of steps that have a valid manifest, with it, by step."""
    if folder.is_dir():
        for path in sorted(path for path in folder.iterdir() if path.name.isdigit()):
            manifest = read_manifest(path, verify, partial)
            if manifest is not None:
                yield path, manifest


class OtherRun(InputError):
    """Directories of runs were written for another spec or corpus; `told`: the message without its remedy."""

    def __init__(self, told: str, *paths: Path) -> None:
        which = "this directory" if len(paths) == 1 else f"these {len(paths)}"
        super().__init__(
            f"{told}: rename the study, make the change with --set (its runs have directories of their own), or move "
            f"{which} out of {paths[0].parent}"
        )
        self.told, self.paths = told, paths


def at_stored_rate(rundir: RunDir, run: RunSpec) -> RunSpec:
    """A run whose learning rate is still to come with the rate that its directory has; any other run as it is."""
    if not run.is_pending or not rundir.run_json.exists():
        return run
    stored = rundir.spec()
    training = run.training.model_copy(update={"lr": stored.training.lr})
    return run.model_copy(update={"training": training, "rate": stored.rate})


def prepare_run(
    directory: str | Path,
    run: RunSpec,
    cost: dict[str, Any],
    corpus_fingerprint: str,
    versions: dict[str, str],
    known: Known | None = None,
    tokenizer: str | None = None,
) -> RunDir:
    """Write run.json, or accept the one that is there if it describes this very run.

    `cost` is flops.cost_table of the model; `versions` the packages' versions; `known` as of check_run; `tokenizer` the
    identity of the corpus' tokenizer. Raises InputError, and changes nothing, where the directory belongs to a run with
    another spec or another corpus.
    """
    rundir = RunDir(directory)
    if check_run(rundir, run, corpus_fingerprint, known):
        record = rundir.record()
        spec = run.model_dump(mode="json")
        spec["corpus"]["source"] = record["spec"]["corpus"]["source"]  # earlier hashes are made of it
        spec["model"] |= rundir.spec().unread  # and of these
        if record["spec"] != spec:  # what decides no number may change: jobs.recompute
            write_json(rundir.run_json, record | {"spec": spec}, kind="run")
        return rundir
    rundir.path.mkdir(parents=True, exist_ok=True)
    record = {
        "schema": SCHEMA,
        "run_id": run.run_id,
        "study": run.study,
        "spec": run.model_dump(mode="json"),
        "spec_hash": run.spec_hash,
        "model": run.model,
        "cost": cost,
        "corpus_fingerprint": corpus_fingerprint,
        "versions": versions,
        "git_commit": git_commit(),
        "tokenizer": run.corpus.tokenizer,
        "tokenizer_identity": tokenizer,
    }
    write_json(rundir.run_json, record, kind="run")
    return rundir


def check_run(rundir: RunDir, run: RunSpec, corpus_fingerprint: str | None = None, known: Known | None = None) -> bool:
    """Whether run.json is there already; raises OtherRun where it was written for another spec or corpus. A rate
    that is still to come is none that could be another.

    `known` tells whether the corpus is one that a run with this fingerprint and source means (Corpus.is_known_as).
    """
    if not rundir.run_json.exists():
        return False
    record, run = rundir.record(), at_stored_rate(rundir, run)
    there = record.get("spec_hash")
    if there != run.spec_hash and there not in rundir.hashes(run):
        told, here = f"spec_hash {there}", run.spec_hash
        if found := _first_difference(record["spec"], run):
            told, here = f"{found[0]} ({told})", f"{found[1]} ({here})"
        raise _other(rundir, told, here)
    there = record.get("corpus_fingerprint")
    if corpus_fingerprint is not None and there != corpus_fingerprint:
        source = record["spec"].get("corpus", {}).get("source", [])
        if known is None or not known(str(there), source):
            raise _other(rundir, f"corpus_fingerprint {there}", corpus_fingerprint)
    return True


def _other(rundir: RunDir, there: str, here: str) -> OtherRun:
    return OtherRun(f"{rundir.path}: was written with {there}, this study asks for {here}", rundir.path)


def _first_difference(spec: dict[str, Any], run: RunSpec) -> tuple[str, str] | None:
    """("training.lr=0.003", "0.01"): where a stored spec is not `run`; checkpoint_tokens last, as they follow from
    others."""
    wanted = run.model_dump(mode="json")
    spec = spec | {"model": _by_todays_names(spec.get("model", {}))}
    spec["training"] = training_of_today(spec.get("training", {}))
    keys = [(section, key) for section in ("model", "corpus", "training") for key in wanted[section] if key != "source"]
    for section, key in sorted(keys, key=lambda pair: pair[1] == "checkpoint_tokens"):
        without = Training.model_fields[key].default if section == "training" else None
        stored, asked = spec.get(section, {}).get(key, without), wanted[section][key]
        if stored != asked:
            return f"{section}.{key}={stored}", str(asked)
    return None


def _by_todays_names(model: dict[str, Any]) -> dict[str, Any]:
    """A stored model with the fields that versions since gave names or defaults; as it is where no such model is."""
    try:
        return ModelConfig.from_dict(model).to_dict()
    except (InputError, TypeError):
        return model


def clean_unfinished(study: Path) -> None:
    """Remove what a kill left unfinished below a study's directory; runs that a process is training are left alone."""
    remove_unfinished(study, *study.glob("results*"))
    for run in (study / "runs").glob("*"):
        if not is_locked(run):
            remove_unfinished(run, below=True)


def package_versions() -> dict[str, str]:
    """Versions of what decides the numbers, without importing any of it."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for name in ("linear-scaling", "torch", "deepspeed", "transformers", "numpy", "tiktoken"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


@cache
def git_commit() -> str | None:
    """The commit of the source tree this package runs from, with "+changes" where it differs; None outside of git.

    A submission's copy of the packages holds it in the file COMMIT.
    """
    root = Path(__file__).resolve().parents[2]
    if (root / "COMMIT").is_file():
        return (root / "COMMIT").read_text().strip() or None
    if not (root / ".git").exists() or shutil.which("git") is None:
        return None

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        except subprocess.TimeoutExpired:  # a slow file system is no reason to stop
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("rev-parse", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no")
    return (commit + ("+changes" if changed else "")) if commit else None
