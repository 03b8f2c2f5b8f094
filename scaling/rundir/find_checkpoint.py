"""Find a checkpoint by a path of the command line: its own directory, or a run's, whose newest it then is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from arch.errors import InputError, shown
from arch.registry import load_plugins
from data.files import MANIFEST, read_manifest

from .directory import RunDir
from .saved import WEIGHTS, Checkpoint, weights_left_out

WHERE = "give OUT/STUDY/runs/RUN/checkpoints/STEP, or OUT/STUDY/runs/RUN for its newest"
# What a checkpoint's manifest says of it: names of files, tables and pages are made of these.
CHECKS: dict[str, Callable[[Any], Any]] = {
    "run_id": lambda value: isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,254}", value),
    "step": lambda value: type(value) is int and value >= 0,
    "n_tokens": lambda value: value is None or (type(value) is int and value >= 0),
    "dtype": lambda value: value is None or isinstance(value, str),
    "probe_loss": lambda value: value is None or type(value) in (int, float),
    "tokenizer": lambda value: value is None or (isinstance(value, dict) and {"name", "identity"} <= value.keys()),
}


def find_checkpoint(path: Path, say: Callable[[str], None], plugins: Iterable[str] | None = None) -> Checkpoint:
    """The checkpoint at `path`, its checksums verified; `say` gets a line where a run's newest was chosen.

    plugins: modules to import first, for architectures from outside. Raises InputError: a plugin that cannot be
    imported, no such directory, neither a checkpoint nor a run, a run without one, a damaged one.
    """
    load_plugins(plugins or ())
    path = path.resolve()
    if not path.is_dir():
        raise InputError(f"{path}: {'is a file' if path.exists() else 'does not exist'}; {WHERE}")
    if not (path / MANIFEST).exists():
        if not (path / "run.json").exists():
            raise InputError(f"{path}: is no checkpoint (no {MANIFEST}) and no run (no run.json); {WHERE}")
        checkpoints = RunDir(path).checkpoints(verify=False)
        if not checkpoints:
            for checkpoint in RunDir(path).checkpoints(verify=False, partial=True)[-1:]:
                raise InputError(f"{path}: {checkpoint.left_out}")
            if folders := sorted(folder.name for folder in (path / "checkpoints").glob("[0-9]*")):
                raise InputError(
                    f"{path}: its newest checkpoint, {folders[-1]}, is damaged, and no other is whole; `scaling run "
                    f"STUDY --repair` trains the run again"
                )
            raise InputError(f"{path}: this run has no checkpoint yet; train it first, or give another run")
        newest = max(
            (folder.name for folder in checkpoints[-1].path.parent.iterdir() if folder.name.isdigit()), key=int
        )
        path = checkpoints[-1].path
        state = "was left out by a bundle" if weights_left_out(path.with_name(newest)) else "is damaged"
        say(f"checkpoint: {path}" + (f" (the newer {newest} {state})" if newest != path.name else ""))
    manifest = read_manifest(path)
    if manifest is None and (why := weights_left_out(path)):
        raise InputError(f"{path}: {why}")
    if manifest is None:
        raise InputError(
            f"{path}: is damaged (a file is missing or differs from {MANIFEST}); take another checkpoint, or train the "
            f"run again"
        )
    if WEIGHTS not in manifest["files"] or "run_id" not in manifest:
        raise InputError(f"{path}: is no checkpoint ({MANIFEST} lists no {WEIGHTS}); {WHERE}")
    for key, fits in CHECKS.items():
        if not fits(value := manifest.get(key)):
            raise InputError(f"{path}: is no checkpoint ({MANIFEST}: {key} is {shown(value)}); {WHERE}")
    return Checkpoint(path, manifest)
