"""The training state in <run>/state/<step>/, which is saved whole or not at all.

Every process writes its piece (module pieces) into a temporary directory; then rank 0 adds the manifest with their
digests and the shape of every parameter, and renames it. Any number of processes, at any ZeRO stage, continue from it.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Container
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from arch.errors import InputError
from data.files import read_manifest, reading, remove_unfinished, seal_directory, writing

from ..rundir.saved import REMEDY, Saved, read_saved

if TYPE_CHECKING:
    from .engine import Engine


def state_path(directory: Path, step: int) -> Path:
    return directory / f"{step:08d}"


def steps_on_disk(directory: Path) -> list[int]:
    """The steps of all state directories, complete or not, ascending."""
    return sorted(int(path.name) for path in directory.glob("[0-9]*") if path.name.isdigit())


def save_state(
    engine: Engine, directory: Path, step: int, manifest: dict[str, Any], keep: int, held: Container[int] = ()
) -> None:
    """Save the state after `step`, then remove all states except the newest `keep` and those after the steps `held`.
    Every rank must call it."""
    path = state_path(directory, step)
    # The same name on every rank, and not that of an older job, whose ranks may still be writing.
    temporary = path.with_name(f".{path.name}.{engine.from_first_rank(uuid.uuid4().hex)}.tmp")

    def write() -> dict[str, Any]:
        with writing(directory):
            temporary.mkdir(parents=True, exist_ok=True)
            return engine.save(temporary)

    def seal() -> None:
        if engine.ranks.rank == 0:
            with writing(directory):
                seal_directory(temporary, path, manifest | more, kind="state", files=files)
                for old in steps_on_disk(directory)[:-keep]:
                    if old not in held:
                        shutil.rmtree(state_path(directory, old))

    try:
        files = {name: about for piece in engine.together(write) for name, about in piece.items()}
        n_numbers = sum(about.pop("n_numbers") for about in files.values())
        more = {"step": step, "world_size": engine.ranks.world, "parameters": engine.shapes, "n_numbers": n_numbers}
        more["skipped"] = engine.skipped.tolist()
        engine.together(seal)
    except Exception:
        shutil.rmtree(temporary, ignore_errors=True)  # so that nothing half-written keeps the disk full
        raise


def newest_state(directory: Path, spec_hash: str) -> tuple[int, list[str]]:
    """The step of the newest intact state of this spec (0: none), and a warning for each newer, damaged state.

    Raises InputError for an intact state of another spec, or that cannot be read.
    """
    warnings: list[str] = []
    for step in reversed(steps_on_disk(directory)):
        path = state_path(directory, step)
        manifest = read_saved(path)
        if manifest is None or Saved(path, manifest).world_size is None:
            cause = "no manifest, a wrong checksum, or saved after another step"
            warnings.append(f"warning: {path} is damaged ({cause}) and is not used")
        elif manifest.get("spec_hash") != spec_hash:
            raise InputError(
                f"{path} was written by spec {manifest.get('spec_hash')}, this run's is {spec_hash}: "
                f"remove the run directory or use another name"
            )
        else:
            Saved(path, manifest).held()
            return step, warnings
    return 0, warnings


def load_state(engine: Engine, directory: Path, step: int) -> None:
    """Continue `engine` from the state after `step`. Raises InputError where it is that of other parameters."""
    path = state_path(directory, step)
    manifest = read_manifest(path, verify=False)  # rank 0 has compared the digests
    if manifest is None:
        raise InputError(f"{path}: is damaged; {REMEDY}")
    saved, now = manifest["parameters"], engine.shapes
    if saved != now:
        name = next(name for name in sorted({*saved, *now}) if saved.get(name) != now.get(name))
        was, has = (shapes.get(name, "not there") for shapes in (saved, now))
        raise InputError(
            f"{path} is of other parameters: {name} is {was}, this model's {has}; train the run with the code that "
            f"wrote it, or remove the run directory"
        )
    engine.load(Saved(path, manifest).held())
    with reading(path, REMEDY):
        engine.skipped.copy_(torch.tensor(manifest.get("skipped", [0.0, 0.0])))


def remove_after(directory: Path, step: int) -> None:
    """Remove the (damaged) states after `step`, and unfinished writes."""
    remove_unfinished(directory)
    for later in steps_on_disk(directory):
        if later > step:
            shutil.rmtree(state_path(directory, later))
