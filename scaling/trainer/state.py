"""DeepSpeed's full state in <run>/state/<step>/, which is saved whole or not at all.

Every rank writes its part into a temporary directory; after a barrier rank 0 adds checksums and the manifest and
renames it. DeepSpeed's own `latest` file is not used, because a kill can leave it empty.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Container
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arch.amounts import counted
from arch.errors import InputError
from data.files import disk_full_named, read_manifest, remove_unfinished, seal_directory

from ..rundir.saved import Saved, read_saved

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
    first = engine.ranks.rank == 0
    try:
        with disk_full_named(directory):
            if first:
                temporary.mkdir(parents=True)
            engine.barrier()
            engine.save(temporary)
            engine.barrier()
            if first:
                more = {"step": step, "world_size": engine.ranks.world, "zero_stage": engine.stage}
                seal_directory(temporary, path, manifest | more, kind="state")
                for old in steps_on_disk(directory)[:-keep]:
                    if old not in held:
                        shutil.rmtree(state_path(directory, old))
            engine.barrier()
    except Exception:
        shutil.rmtree(temporary, ignore_errors=True)  # so that nothing half-written keeps the disk full
        raise


def newest_state(directory: Path, spec_hash: str) -> tuple[int, list[str]]:
    """The step of the newest intact state of this spec (0: none), and a warning for each newer, damaged state.

    Raises InputError for an intact state of another spec.
    """
    warnings: list[str] = []
    for step in reversed(steps_on_disk(directory)):
        path = state_path(directory, step)
        manifest = read_saved(path)
        if manifest is None or Saved(path, manifest).world_size is None or type(manifest.get("zero_stage")) is not int:
            cause = "no manifest, a wrong checksum, or saved after another step"
            warnings.append(f"warning: {path} is damaged ({cause}) and is not used")
        elif manifest.get("spec_hash") != spec_hash:
            raise InputError(
                f"{path} was written by spec {manifest.get('spec_hash')}, this run's is {spec_hash}: "
                f"remove the run directory or use another name"
            )
        else:
            return step, warnings
    return 0, warnings


def load_state(engine: Engine, directory: Path, step: int) -> None:
    """Continue `engine` from the state after `step`. Raises InputError at another stage or, sharded, world size."""
    path = state_path(directory, step)
    manifest = read_manifest(path, verify=False)  # rank 0 has checked it
    assert manifest is not None
    saved, now = (manifest["zero_stage"], manifest["world_size"]), (engine.stage, engine.ranks.world)
    if saved[0] != now[0] or (now[0] and saved != now):
        raise InputError(
            f"{path} was saved at ZeRO stage {saved[0]} by {counted(saved[1], 'process', 'processes')}, this run "
            f"has stage {now[0]} and {now[1]}: continue with {counted(saved[1], 'process', 'processes')}"
        )
    engine.load(path)


def remove_after(directory: Path, step: int) -> None:
    """Remove the (damaged) states after `step`, and unfinished writes."""
    remove_unfinished(directory)
    for later in steps_on_disk(directory):
        if later > step:
            shutil.rmtree(state_path(directory, later))
