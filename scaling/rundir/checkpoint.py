"""From a path on the command line to a checkpoint: an artifact's directory, or a run's, whose newest it then is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arch.errors import InputError
from arch.registry import load_plugins
from data.files import MANIFEST, read_json, read_manifest

from .directory import RunDir

if TYPE_CHECKING:
    from data.tokenizer import Tokenizer

WEIGHTS = "model.safetensors"
WHERE = "give OUT/STUDY/runs/RUN/checkpoints/STEP, or OUT/STUDY/runs/RUN for its newest"


@dataclass(frozen=True)
class Checkpoint:
    """An intact artifact; its manifest has step, n_tokens, run_id, spec_hash."""

    path: Path
    manifest: dict[str, Any]

    @property
    def name(self) -> str:
        """run-step."""
        return f"{self.manifest['run_id']}-{self.manifest['step']}"

    @property
    def corpus(self) -> Path:
        """Where the study's corpus lies. Raises InputError where this artifact lies in no run's directory, as an
        exported one does."""
        rundir = RunDir(self.path.parent.parent)
        if not (rundir.path / "run.json").exists():
            raise InputError(
                f"{self.path}: lies in no run's directory, so it has no corpus: give a text with --text FILE"
            )
        return rundir.study / "corpus"

    def tokenizer(self) -> Tokenizer:
        """The tokenizer whose files the artifact carries, known by its end-of-text id. Raises InputError where it is
        none of ours, or its rank file is not to be had."""
        from data.tokenizer import ByteTokenizer, Cl100kTokenizer, get_tokenizer

        try:
            (end,) = (token["id"] for token in read_json(self.path / "tokenizer.json")["added_tokens"])
        except (OSError, ValueError, KeyError, TypeError):
            raise InputError(f"{self.path}: has no tokenizer.json that can be read; train the run again") from None
        for tokenizer in (ByteTokenizer, Cl100kTokenizer):
            if tokenizer.eot_id == end:
                return get_tokenizer(tokenizer.name)
        raise InputError(f"{self.path}/tokenizer.json: a tokenizer with end-of-text {end} is not known here")


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
        found = RunDir(path).checkpoints(verify=False)
        if not found:
            raise InputError(f"{path}: this run has no checkpoint yet; train it first, or give another run")
        begun = max((one.name for one in found[-1].path.parent.iterdir() if one.name.isdigit()), key=int)
        path = found[-1].path
        say(f"checkpoint: {path}" + (f" (the newer {begun} is damaged)" if begun != path.name else ""))
    manifest = read_manifest(path)
    if manifest is None:
        raise InputError(
            f"{path}: is damaged (a file is missing or differs from {MANIFEST}); take another checkpoint, or train the "
            f"run again"
        )
    if WEIGHTS not in manifest["files"] or "run_id" not in manifest:
        raise InputError(f"{path}: is no checkpoint ({MANIFEST} lists no {WEIGHTS}); {WHERE}")
    return Checkpoint(path, manifest)
