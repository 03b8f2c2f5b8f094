"""What a run saved: checkpoints, which are weights for evaluation and sharing, and training states, for resuming."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from arch.errors import InputError
from arch.model.stored import PRECISIONS
from data.files import read_manifest, reading
from data.left_out import left_out

if TYPE_CHECKING:
    from data.tokenizer import Tokenizer

WEIGHTS = "model.safetensors"
LEFT_OUT = "were left out by a bundle: they are on the machine that trained it"
WEIGHT, STEP = "weight", "step"  # what a training state has of a parameter, beside the optimizer's moments
REMEDY = "remove this directory, and the run goes on from an earlier state where there is one"


class Stored(NamedTuple):
    """`length` numbers of a parameter from its element `start` on, in `file` from the byte `offset` on."""

    start: int
    length: int
    file: Path
    offset: int
    dtype: str = "float32"  # as torch names it


Held = dict[str, dict[str, list[Stored]]]  # by parameter, by what it is (weight, moments, step), by start


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

    def held(self) -> Held:
        """Where a training state has the numbers of every parameter. Raises InputError where they cannot be read, where
        one is missing or there twice, and where it is of a form that is not read any more: without `parameters`, shapes
        by name."""
        shapes, kept = self.manifest.get("parameters"), self.manifest.get("n_numbers")
        if not isinstance(shapes, dict):
            raise InputError(
                f"{self.path}: was written by an earlier version, whose training states this one does not read; finish "
                f"the run with that version, or remove the run directory to train it again"
            )
        with reading(self.path, REMEDY):
            held = stored_numbers(self.path, self.manifest["files"])
            for name in sorted({*shapes, *held}):
                n_elements = math.prod(shapes.get(name, [0]))
                for what in sorted({WEIGHT, *held.get(name, ())} - {STEP}):
                    n_there = _n_once(held.get(name, {}).get(what, []))
                    if n_there != n_elements:
                        raise self._incomplete(f"{what} of {name}: {n_there:,} of {n_elements:,} numbers")
            n_there = sum(part.length for kinds in held.values() for parts in kinds.values() for part in parts)
            if kept not in (None, n_there):
                raise self._incomplete(f"{n_there:,} numbers are there, {kept:,} were written")
        return held

    def _incomplete(self, why: str) -> InputError:
        return InputError(f"{self.path}: is no training state ({why}); {REMEDY}")


def _n_once(parts: list[Stored]) -> int:
    """How many elements follow each other from the first on, each there once."""
    end = 0
    for part in parts:
        if part.start != end:
            break
        end += part.length
    return end


def stored_numbers(folder: Path, names: Iterable[str]) -> Held:
    """What the pieces of these names in a folder have. Raises InputError where one cannot be read."""
    held: Held = {}
    for name in names:
        with reading(file := folder / name, REMEDY):
            for key, stored in _tensors(file):
                parameter, what, start = key.rsplit("/", 2)
                if stored.dtype != "float32":
                    raise ValueError(f"{key} is not fp32")
                held.setdefault(parameter, {}).setdefault(what, []).append(stored._replace(start=int(start)))
    for kinds in held.values():
        for parts in kinds.values():
            parts.sort()
    return held


def stored_weights(file: Path) -> dict[str, Stored]:
    """Where a checkpoint's file has each weight, its elements in their order. Raises InputError where it cannot be
    read."""
    with reading(file, REMEDY):
        return dict(_tensors(file))


def _tensors(file: Path) -> Iterator[tuple[str, Stored]]:
    """The tensors of a safetensors file by name. Raises OSError and ValueError where its header is damaged."""
    known = {PRECISIONS[name][0]: (name, PRECISIONS[name][1]) for name in ("float32", "bfloat16")}
    with open(file, "rb") as handle:
        begin = 8 + int.from_bytes(handle.read(8), "little")
        if begin > file.stat().st_size:
            raise ValueError("its header is longer than the file")
        header = json.loads(handle.read(begin - 8))
    header.pop("__metadata__", None)
    for name, about in header.items():
        dtype, shape, (first, end) = (about[key] for key in ("dtype", "shape", "data_offsets"))
        length = math.prod(shape)
        precision, n_bytes = known.get(dtype, ("", 0))
        if not n_bytes or not 0 <= first <= end or end - first != n_bytes * length:
            raise ValueError(f"{name} is neither fp32 nor bf16, or lies outside of the file")
        yield name, Stored(0, length, file, begin + first, precision)


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
