"""The beginning of a branch: its trunk's training state, after a check that the branch would have had the same past."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from arch.errors import InputError
from data.files import write_json

from ..rundir.directory import RunDir
from ..rundir.saved import Saved, read_saved

if TYPE_CHECKING:
    from data.corpus import Corpus

    from ..study.run import RunSpec


@dataclass(frozen=True)
class Origin:
    """The state after `step` of the run `trunk`, with the hashes of its spec and of the state's files."""

    trunk: str
    step: int
    spec_hash: str
    state_sha256: str

    def __str__(self) -> str:
        return f"{self.trunk} after step {self.step}"


def hand_over(rundir: RunDir, run: RunSpec, corpus: Corpus) -> Origin:
    """Record the intact state from which `run` begins in its run.json as `origin`, and return it. Raises InputError
    where the trunk has other settings or text, or no such state."""
    assert run.trunk is not None
    trunk = RunDir(rundir.path.parent / run.trunk)
    if not trunk.run_json.exists():
        raise InputError(f"{run.run_id} is a branch: train its trunk {run.trunk} first, which is not in {trunk.path}")
    trunk_run, planned, step = trunk.spec(), trunk.record()["corpus_fingerprint"], run.begins_after
    if trunk_run.beginning != run.beginning:
        raise InputError(
            f"{trunk.path} was trained with other settings than its branch {run.run_id}: remove it and train it again"
        )
    if planned != corpus.fingerprint:
        raise InputError(
            f"{trunk.path} was trained on the corpus {planned}, its branch {run.run_id} is to be "
            f"on {corpus.fingerprint}: remove it and train it again"
        )
    path = trunk.state(step)
    manifest = read_saved(path)
    if manifest is None and (why := trunk.weights_elsewhere):
        raise InputError(f"{run.run_id} begins from its trunk's state after step {step}, and {why}")
    if manifest is None or manifest.get("spec_hash") != trunk_run.spec_hash:
        trunk_step = trunk.status()["step"]
        remedy = f"train {run.trunk} first" if trunk_step < step else f"remove {trunk.path} and train it again"
        raise InputError(
            f"{run.run_id} begins from its trunk's state after step {step}, and {path} is missing or damaged: {remedy}"
        )
    Saved(path, manifest).held()
    files = json.dumps(manifest["files"], sort_keys=True)
    origin = Origin(run.trunk, step, trunk_run.spec_hash, hashlib.sha256(files.encode()).hexdigest())
    write_json(rundir.run_json, rundir.record() | {"origin": asdict(origin)}, kind="origin")
    return origin
