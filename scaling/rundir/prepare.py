"""A run's directory prepared: run.json written once, for one spec and one corpus, and held against another. Imports no
torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from arch.config import ModelConfig
from arch.errors import InputError
from data.files import write_json

from ..study.earlier import training_of_today
from ..study.run import RunSpec
from ..study.training import Training
from .directory import SCHEMA, RunDir
from .versions import git_commit

Known = Callable[[str, list[str]], bool]  # of a corpus, by fingerprint and source


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
    prediction: str | None = None,
) -> RunDir:
    """Write run.json, or accept the one that is there if it describes this very run.

    `cost` is flops.cost_table of the model; `versions` the packages' versions; `known` as of check_run; `tokenizer` the
    identity of the corpus' tokenizer; `prediction` that of a forecast run's (analysis.forecast.stored.digest). Raises
    InputError, and changes nothing, where the directory belongs to a run with another spec or another corpus.
    """
    rundir = RunDir(directory)
    if check_run(rundir, run, corpus_fingerprint, known):
        record, stored = rundir.record(), rundir.spec()
        spec = run.model_dump(mode="json")
        spec["corpus"]["source"] = record["spec"]["corpus"]["source"]  # earlier hashes are made of it
        spec["model"] |= stored.unread  # and of these
        if record["spec"] != spec:  # what decides no number may change: jobs.recompute
            write_json(rundir.run_json, record | {"spec": spec}, kind="run")
        foretell(rundir, prediction)
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


def foretell(rundir: RunDir, prediction: str | None) -> None:
    """The digest of a newer prediction into the record of a run that is prepared and has not begun: what has keeps that
    under which it was trained."""
    if prediction is None or not rundir.run_json.exists() or rundir.has_begun:
        return
    if (record := rundir.record()).get("prediction") != prediction:
        write_json(rundir.run_json, record | {"prediction": prediction}, kind="run")


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
