"""Merged points of a run: the mean of its last weights, written as a checkpoint beside those of the run.

Weights for a later mean are kept in fp32 in merge/ until it is written, so that a run that was killed ends with the
same bits. The mean is computed in float64 and rounded once to fp32; its file has the precision of the other
checkpoints. It is neither a state to resume from nor a checkpoint of the run.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from arch.model.lm import load_model, read_weights
from data.files import disk_full_named, new_directory, remove_unfinished

from ..rundir.checkpoint_writer import ProbeError, valid_checkpoint, write_checkpoint
from ..rundir.saved import read_saved
from ..study.merging import source_steps

if TYPE_CHECKING:
    from pathlib import Path

    from arch.model.lm import LanguageModel
    from data.tokenizer import Tokenizer

    from ..rundir.directory import RunDir
    from ..study.run import RunSpec


class Merger:
    """Makes the merged points in the first process of `run` at `rundir`; `identity`, `probe`, `tokenizer` are those of
    the run's checkpoints; `say` gets a line for each merged point."""

    def __init__(
        self,
        rundir: RunDir,
        run: RunSpec,
        identity: dict[str, Any],
        probe: np.ndarray,
        device: torch.device,
        tokenizer: Tokenizer,
        say: Callable[[str], None],
    ) -> None:
        self._rundir, self._run, self._identity = rundir, run, identity
        self._probe, self._device, self._tokenizer, self._say = probe, device, tokenizer, say
        self._sources = {step: source_steps(step, run.training) for step in run.merged_after}

    def resume(self, step: int) -> list[str]:
        """Remove from disk what a run that continues after `step` has not made yet. Returns a warning for each earlier
        merged point that is lost."""
        remove_unfinished(self._rundir.path / "merge", self._rundir.path / "merged")
        for folder in (self._rundir.path / "merge").glob("[0-9]*"):
            if int(folder.name) > step or not self._needed_after(int(folder.name), step):
                shutil.rmtree(folder)
        for point in self._sources:
            if point > step and not self._is_there(point):
                shutil.rmtree(self._rundir.merged(point), ignore_errors=True)  # damaged, or of other weights
        lost = [point for point in self._sources if point <= step and not self._is_there(point)]
        return [
            f"warning: {self._rundir.merged(point)} is missing, damaged or of other weights and lies before step "
            f"{step}: not written again"
            for point in lost
        ]

    def after(self, step: int, model: LanguageModel) -> None:
        """Keep the weights after `step` where a mean needs them, and write the mean that is due."""
        if any(step in sources for sources in self._sources.values()):
            self._keep(step, model)
        if step in self._sources:
            if not self._is_there(step):
                self._merge(step)
            for source in self._sources[step]:
                if not self._needed_after(source, step):
                    shutil.rmtree(self._source(source), ignore_errors=True)

    def _source(self, step: int) -> Path:
        return self._rundir.path / "merge" / f"{step:08d}"

    def _is_there(self, point: int) -> bool:
        return valid_checkpoint(self._rundir.merged(point), self._run.spec_hash) and self._rundir.has_merged(
            point, self._run.training
        )

    def _needed_after(self, source: int, step: int) -> bool:
        return any(source in sources for point, sources in self._sources.items() if point > step)

    def _manifest(self, step: int) -> dict[str, Any]:
        return self._identity | {"step": step, "n_tokens": step * self._run.training.batch_tokens}

    def _keep(self, step: int, model: LanguageModel) -> None:
        path = self._source(step)
        if valid_checkpoint(path, self._run.spec_hash):
            return
        with disk_full_named(path.parent), new_directory(path, self._manifest(step), "merge-source") as temporary:
            model.save_pretrained(temporary, torch.float32)

    def _merge(self, point: int) -> None:
        steps = self._sources[point]
        if missing := [step for step in steps if read_saved(self._source(step)) is None]:
            self._say(f"step {point}: not merged, the weights of step {missing[0]} are missing or damaged")
            return
        model = load_model(self._source(point))
        mean_into(model, [self._source(step) for step in steps])
        dtype = self._run.training.checkpoint_dtype
        manifest = self._manifest(point) | {"merged": {"steps": steps, "mean": "float64, rounded once to fp32"}}
        path = self._rundir.merged(point)
        try:
            loss = write_checkpoint(path, model, dtype, self._probe, self._device, manifest, self._tokenizer, "merged")
            self._say(f"step {point}: mean of {len(steps)} weights, probe loss {loss:.4f}")
        except ProbeError:  # the run itself ends with its own reason
            self._say(f"step {point}: not merged, the probe loss of the mean is not finite")


def mean_into(model: LanguageModel, folders: list[Path]) -> None:
    """Give `model` the plain mean of the weights in `folders`: sums in float64, rounded once."""
    sums: dict[str, torch.Tensor] = {}
    for folder in folders:
        for name, tensor in read_weights(folder).items():
            sums[name] = sums[name].add_(tensor) if name in sums else tensor.double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(sums[name] / len(folders))
