"""A run's directory prepared: run.json written once, for one spec and one corpus, and held against another. Imports no
torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from arch.errors import InputError
from data.files import write_json

from ..study.run import RunSpec
from .directory import SCHEMA, RunDir
from .versions import git_commit


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
    cost: dict[str, Any],
    corpus_fingerprint: str,
    versions: dict[str, str],
    tokenizer: str,
    prediction: str | None = None,
) -> RunDir:
    """Write run.json, or accept the one that is there if it describes this very run.

    `cost` is flops.cost_table of the model; `versions` the packages' versions; `tokenizer` the identity of the corpus'
    tokenizer; `prediction` that of a forecast run's (analysis.forecast.stored.Predictions.digest). Raises
    InputError, and changes nothing, where the directory belongs to a run with another spec or another corpus.
    """
    rundir = RunDir(directory)
    if check_run(rundir, run, corpus_fingerprint):
        record, spec = rundir.record(), run.model_dump(mode="json")
        if not record["spec"].get("checked", True) and rundir.status()["state"] == "done":
            spec["checked"] = False  # it was trained so
        if record["spec"] != spec:  # what decides no number may change: jobs.recompute
            write_json(rundir.run_json, record | {"spec": spec}, kind="run")
        record_prediction(rundir, prediction)
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
    } | ({} if prediction is None else {"prediction": prediction})
    write_json(rundir.run_json, record, kind="run")
    return rundir


def record_prediction(rundir: RunDir, prediction: str | None) -> None:
    """Write the digest of a newer prediction into the record of a run that is prepared and has not begun; a run that
    has begun keeps the digest that it was trained under."""
    if prediction is None or not rundir.run_json.exists() or rundir.has_begun:
        return
    if (record := rundir.record()).get("prediction") != prediction:
        write_json(rundir.run_json, record | {"prediction": prediction}, kind="run")


def check_run(rundir: RunDir, run: RunSpec, corpus_fingerprint: str | None = None) -> bool:
    """Whether run.json is there already; raises OtherRun where it was written for another spec or corpus. A rate
    that is still to come is none that could be another."""
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
    return True


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
