"""A run's directory prepared: run.json written once, for one spec and one corpus, and held against another; its FLOP
follow the counter. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from arch.amounts import counted
from arch.config import ModelConfig
from arch.errors import InputError
from data.files import write_json
from flops import cost_table

from ..study.run import RunSpec
from .directory import SCHEMA, RunDir
from .lock import is_locked
from .saved import read_saved
from .versions import THEN, git_commit, other_code


class OtherRun(InputError):
    """Directories of runs were written for another spec or corpus; `difference`: the message without its remedy."""

    def __init__(self, difference: str, *paths: Path) -> None:
        directories = "this directory" if len(paths) == 1 else f"these {len(paths)}"
        super().__init__(
            f"{difference}: rename the study, make the change with --set (its runs have directories of their own), or "
            f"move {directories} out of {paths[0].parent}"
        )
        self.difference, self.paths = difference, paths


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
    corpus_fingerprint: str,
    versions: dict[str, str],
    tokenizer: str,
    prediction: str | None = None,
) -> RunDir:
    """Write run.json, or accept the one that is there if it describes this very run and that has begun.

    `versions` are the packages' versions; `tokenizer` the identity of the corpus' tokenizer; `prediction` that of a
    forecast run's (analysis.forecast.stored.Predictions.digest). Raises InputError, and changes nothing, where the
    directory belongs to a run with another spec or another corpus, or of a model with another number of parameters.
    """
    rundir = RunDir(directory)
    stored = rundir.record() if check_run(rundir, run, corpus_fingerprint) else {}
    if stored and rundir.has_begun:
        spec = run.model_dump(mode="json")
        if rundir.status()["state"] == "done":  # it was trained so
            spec |= {} if stored["spec"].get("checked", True) else {"checked": False}
            spec["training"]["zero_stage"] = stored["spec"]["training"].get("zero_stage", 0)
        if stored["spec"] != spec:  # what decides no number may change: jobs.recompute, training.zero_stage
            write_json(rundir.run_json, stored | {"spec": spec}, kind="run")
        return rundir
    rundir.path.mkdir(parents=True, exist_ok=True)
    record = {
        "schema": SCHEMA,
        "run_id": run.run_id,
        "study": run.study,
        "spec": run.model_dump(mode="json"),
        "spec_hash": run.spec_hash,
        "model": run.model,
        "cost": cost_table(run.config),
        "corpus_fingerprint": corpus_fingerprint,
        "versions": versions,
        "git_commit": git_commit(),
        "tokenizer": run.corpus.tokenizer,
        "tokenizer_identity": tokenizer,
    } | ({} if prediction is None else {"prediction": prediction})
    if (now := stored | record) != stored:  # code and costs may have changed since
        write_json(rundir.run_json, now, kind="run")
    return rundir


def record_prediction(rundir: RunDir, prediction: str | None) -> None:
    """Write the digest of a newer prediction into the record of a run that is prepared and has not begun; a run that
    has begun keeps the digest that it was trained under."""
    if prediction is None or not rundir.run_json.exists() or rundir.has_begun:
        return
    if (record := rundir.record()).get("prediction") != prediction:
        write_json(rundir.run_json, record | {"prediction": prediction}, kind="run")


def record_code(rundir: RunDir, plugins: Sequence[str], step: int) -> str | None:
    """Write into run.json the code of its plugins with which a run begins, or goes on after `step` beside the code
    before; returns a line where that is another."""
    record = rundir.record()
    versions = record["versions"]
    if not (other := other_code(versions, plugins)):
        return None
    goes_on = {name: f"{versions[name]}{THEN}{now}" if name in versions else now for name, now in other.items()}
    write_json(rundir.run_json, record | {"versions": versions | (goes_on if step else other)}, kind="run")
    if not step:
        return None
    what = ", ".join(f"{name} is {now}, was {versions.get(name, 'not there')}" for name, now in other.items())
    return f"warning: the code of its plugin changed: {what}; it goes on after step {step} with the new one"


def changed_code(runs: Iterable[tuple[RunSpec, RunDir]]) -> list[str]:
    """A line for each module of plugins whose code is not what runs that have begun were trained with last."""
    ids: dict[str, list[str]] = {}
    for run, rundir in runs:
        if run.plugins and rundir.has_begun:
            for name in other_code(rundir.record()["versions"], run.plugins):
                ids.setdefault(name, []).append(run.run_id)
    return [
        f"{name} is not the code that {counted(len(held), 'run')} began with ({held[0]}{', ..' * (len(held) > 1)}): "
        f"training and evaluations go on with the new one; remove a run's directory to train it again"
        for name, held in ids.items()
    ]


def check_run(rundir: RunDir, run: RunSpec, corpus_fingerprint: str | None = None) -> bool:
    """Whether run.json is there already. Raises OtherRun where it was written for another spec or corpus, or of a run
    in training with another number of parameters, and InputError where its training cannot go on from its state. A
    rate that is still to come is none that could be another."""
    if not rundir.run_json.exists():
        return False
    record, run = rundir.record(), at_stored_rate(rundir, run)
    if (stored := record.get("spec_hash")) != run.spec_hash:
        stored_setting, own_setting = f"spec_hash {stored}", run.spec_hash
        if difference := _first_difference(record["spec"], run):
            stored_setting, own_setting = f"{difference[0]} ({stored_setting})", f"{difference[1]} ({own_setting})"
        raise _other(rundir, stored_setting, own_setting)
    stored = record.get("corpus_fingerprint")
    if corpus_fingerprint is not None and stored != corpus_fingerprint:
        raise _other(rundir, f"corpus_fingerprint {stored}", corpus_fingerprint)
    if rundir.has_begun and rundir.status()["state"] != "done":
        stored, now = record.get("cost", {}).get("n_params"), cost_table(run.config)["n_params"]
        if stored != now:  # the code of its architecture has changed
            raise _other(rundir, f"n_params={stored}", str(now))
        for state in reversed(rundir.states(verify=False)):
            try:
                state.held()
                break
            except InputError:
                if read_saved(state.path) is not None:  # else it is damaged: the run goes on from an earlier one
                    raise
    return True


def count_again(study: Path) -> str | None:
    """Write today's count of the FLOP into run.json of the study's runs that have another, by an earlier version or a
    plugin's costs before they were corrected; a line that names them, None where there are none. What was trained is
    the same. Runs keep theirs while they are at work, and where their plugin is not imported."""
    changed = []
    for path in sorted((study / "runs").glob("*/run.json")):
        with suppress(InputError):
            record = RunDir(path.parent).record()
            stored, now = record.get("cost", {}), cost_table(ModelConfig.from_dict(record.get("model", {})))
            was, flops = stored.get("flops_per_token_train"), now["flops_per_token_train"]
            if was == flops or not _are_counts(was) or stored.get("n_params") != now["n_params"]:
                continue
            if is_locked(path.parent):
                continue
            write_json(path, record | {"cost": now}, kind="run")
            name = next(name for name in sorted({*was, *flops}) if was.get(name) != flops.get(name))
            before, after = (f"{cost[name]:,.0f}" if name in cost else "none" for cost in (was, flops))
            changed.append(f"{path.parent.name} {before}, now {after} ({name})")
    if not changed:
        return None
    more = f"; and {counted(len(changed) - 1, 'more run')}" if len(changed) > 1 else ""
    return f"FLOP a token are counted otherwise than when runs were prepared: {changed[0]}{more}; laws follow"


def _are_counts(cost: object) -> bool:
    """Whether this is a count by convention, as readers of run.json take it."""
    return isinstance(cost, dict) and all(isinstance(n, (int, float)) and 0 < n < math.inf for n in cost.values())


def _other(rundir: RunDir, stored_setting: str, own_setting: str) -> OtherRun:
    return OtherRun(f"{rundir.path}: was written with {stored_setting}, this study asks for {own_setting}", rundir.path)


def _first_difference(spec: dict[str, Any], run: RunSpec) -> tuple[str, str] | None:
    """("training.lr=0.003", "0.01"): where a stored spec is not `run`; checkpoint_tokens last, as they follow from
    others."""
    try:
        stored_run = RunSpec.model_validate(spec)
        stored_spec = stored_run.model_dump(mode="json") | {"model": stored_run.config.to_dict()}
    except (ValidationError, InputError):  # of another version
        return None
    planned_spec = run.model_dump(mode="json")
    keys = [
        (section, key)
        for section in ("model", "corpus", "training")
        for key in planned_spec[section]
        if key != "source"
    ]
    for section, key in sorted(keys, key=lambda pair: pair[1] == "checkpoint_tokens"):
        stored, planned = stored_spec[section].get(key), planned_spec[section][key]
        if stored != planned:
            return f"{section}.{key}={stored}", str(planned)
    return None
