"""What a run saved: checkpoints, which are weights for evaluation and sharing, and training states, for resuming."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arch.errors import InputError
from data.files import read_manifest
from data.left_out import left_out

if TYPE_CHECKING:
    from data.tokenizer import Tokenizer

WEIGHTS = "model.safetensors"
LEFT_OUT = "were left out by a bundle: they are on the machine that trained it"


@dataclass(frozen=True, eq=False)
class Saved:
    """A directory that counts, since it has a manifest."""

    path: Path
    manifest: dict[str, Any]

    @property
    def step(self) -> int:
        """The 1-based optimizer step after which it was written."""
        return int(self.manifest["step"])

    @property
    def world_size(self) -> int | None:
        """The processes that wrote it; None where the manifest does not say."""
        world_size = self.manifest.get("world_size")
        return world_size if type(world_size) is int and world_size > 0 else None

    def check_form(self) -> None:
        """Raise InputError where it is a training state of a form that is not read any more: without `parameters`,
        shapes by name."""
        if not isinstance(self.manifest.get("parameters"), dict):
            raise InputError(
                f"{self.path}: was written by an earlier version, whose training states this one does not read; finish "
                f"the run with that version, or remove the run directory to train it again"
            )


def read_saved(path: Path, verify: bool = True, partial: bool = False) -> dict[str, Any] | None:
    """The manifest of what was saved after the step that `path` is named by (00000120); None where it is not whole, as
    of data.files.read_manifest, or was saved after another step: the folder was copied or renamed."""
    manifest = read_manifest(path, verify, partial)
    return manifest if manifest is not None and str(manifest.get("step")).zfill(8) == path.name else None


class Checkpoint(Saved):
    """Weights, configuration and tokenizer; the manifest has step, n_tokens, run_id, spec_hash and the probe loss."""

    @property
    def name(self) -> str:
        """RUN/STEP."""
        return f"{self.manifest['run_id']}/{self.path.name}"

    @property
    def left_out(self) -> str:
        """Why its weights are not there, where a bundle left them out; else ""."""
        return weights_left_out(self.path)

    @property
    def weights_sha256(self) -> str:
        return str(self.manifest["files"][WEIGHTS]["sha256"])

    @property
    def corpus(self) -> Path:
        """Where the study's corpus lies. Raises InputError where this checkpoint lies in no run's directory, as an
        exported one does."""
        run = self.path.parent.parent
        if not (run / "run.json").exists():
            raise InputError(
                f"{self.path}: lies in no run's directory, so it has no corpus: give a text with --text FILE"
            )
        return run.parent.parent / "corpus"

    def tokenizer(self) -> Tokenizer:
        """The tokenizer whose files the checkpoint carries. Raises InputError where it cannot be opened, is not the one
        that the checkpoint was written with, or its rank file is not to be had."""
        from data.tokenizer import get_tokenizer, refuse_another

        try:
            name, identity = (self.manifest["tokenizer"][key] for key in ("name", "identity"))
        except (KeyError, TypeError):
            raise InputError(f"{self.path}: its manifest names no tokenizer; train the run again") from None
        tokenizer = get_tokenizer(name, self.path)
        refuse_another(tokenizer, identity, f"{self.path}: the checkpoint")
        return tokenizer


def weights_left_out(checkpoint: Path) -> str:
    """Why the weights at `checkpoint` are not there, where a bundle left them out; else ""."""
    names = left_out(checkpoint)
    what = "the weights" if WEIGHTS in names else ", ".join(sorted(names))
    return f"{what} of {checkpoint.parent.parent.name} {LEFT_OUT}" if names else ""
