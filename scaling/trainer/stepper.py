"""A run's steps: replayed as CUDA graphs on a GPU where possible, otherwise made by the engine.

The first step after every start runs both ways on the same weights, by DeepSpeed's engine and as graphs: losses and
gradients must be equal to the last bit before anything is updated. Some kernels add in any order (cuDNN's attention),
so that eager passes differ among themselves: then the graphs' difference must be below one rounding to bf16, or about
as small as theirs, and a line says how well this run repeats. Where graphs are not possible, a line gives the reason.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from arch.recorder import CudaRecorder, Recorder, reason_of

from .engine import Engine
from .graphs import StepGraphs, digest, spread

PASSES = 4  # further passes of either kind, where the first two differ
ROUNDING = 1e-3  # of the gradient; rounding to bf16 changes a number by up to 4e-3 of it
APART = 2  # times the widest spread of these few eager passes


def obstacle(device: torch.device, stage: int, in_parts: bool = False) -> str | None:
    """Why steps at this ZeRO stage on this device cannot be replayed, or None. Not called on a CPU. in_parts: whether
    processes share sequences."""
    if in_parts:
        return "jobs.sequence_processes: not tried"
    if stage:
        return f"training.zero_stage {stage}: DeepSpeed asks the host for the gradients' norm"
    if torch.version.hip:
        return f"{torch.cuda.get_device_name(device)} is AMD's: not tried there"
    return None


class Stepper:
    """The steps of `engine`. With `say` they are replayed as graphs, on a GPU or with a recorder; `say` gets one line
    where that is not possible, or not to the bit. `replays`: whether they are replayed, as far as is known."""

    def __init__(
        self, engine: Engine, say: Callable[[str], None] | None = None, record: Recorder | None = None
    ) -> None:
        self.engine, self._say = engine, say or (lambda line: None)
        self._record = record
        self._graphs: StepGraphs | None = None
        self.replays = say is not None and (record is not None or engine.device.type == "cuda")
        in_parts = engine.model.decoder.sequence is not None
        if self.replays and record is None and (reason := obstacle(engine.device, engine.stage, in_parts)):
            self.replays = False
            self._say(f"no CUDA graphs: {reason}")

    def step(self, tokens: Tensor, lr: float) -> tuple[Tensor, Tensor]:
        """Make a step, as Engine.step does."""
        if self.replays and self._graphs is not None and not self._graphs.fits(tokens):
            self._give_up(f"a batch has the shape {list(tokens.shape)}")
        if not self.replays:
            return self.engine.step(tokens, lr)
        if self._graphs is None:
            return self._first_step(tokens, lr)
        self._graphs.passes(tokens)
        self.engine.average_gradients()
        return self._graphs.update(lr)

    def forget(self) -> None:
        """Record anew at the next step, because a loaded state has other tensors as moments."""
        self._graphs = None
        self.engine.drop_gradients()

    def _first_step(self, tokens: Tensor, lr: float) -> tuple[Tensor, Tensor]:
        """Make the passes both ways, then the engine's update, which makes the moments that the update's graph
        needs."""
        engine = self.engine
        if reason := engine.first_reason(self._check(tokens)):
            self._give_up(reason)
            return engine.step(tokens, lr)
        graphs = self._graphs
        assert graphs is not None
        loss = graphs.passes(tokens) / engine.accumulate  # the check may have left those of another pass
        engine.average_gradients()
        norm = engine.update(lr)
        failed: str | None = None
        self._return_memory()
        try:
            graphs.record_update()
        except RuntimeError as error:
            failed = reason_of(error)
        if reason := engine.first_reason(failed):
            self._give_up(reason)
        return loss, norm

    def _check(self, tokens: Tensor) -> str | None:
        """Record forward and backward and compare them with the engine's. Returns the reason where they cannot be
        used."""
        engine = self.engine
        try:
            eager = digest([engine.passes(tokens, average=False), *engine.gradients()])
            engine.drop_gradients()
            record = self._record or CudaRecorder(engine.device)
            self._graphs = graphs = StepGraphs(
                engine.model, engine.optimizer, engine.clip, engine.accumulate, engine.autocast_dtype, record
            )
            graphs.record_passes(tokens[: engine.micro_rows])
            replayed = digest([graphs.passes(tokens), *engine.gradients()])
            return None if replayed == eager else self._compare(graphs, tokens, eager, replayed)
        except RuntimeError as error:  # of CUDA, and of memory
            return reason_of(error)

    def _compare(self, graphs: StepGraphs, tokens: Tensor, eager: list[int], replayed: list[int]) -> str | None:
        """Compare graphs with eager passes of other digests. Returns the reason where they differ by more than
        rounding."""
        engine, eagers, replays = self.engine, {tuple(eager)}, {tuple(replayed)}
        first: list[Tensor] = []
        eager_spread = replay_spread = 0.0
        for _ in range(PASSES):
            engine.drop_gradients()
            now = [engine.passes(tokens, average=False), *engine.gradients()]
            eager_spread = max(eager_spread, spread(first, now)) if first else 0.0
            first = first or now
            eagers.add(tuple(digest(now)))
            del now
            graphs.restore_gradients()
            now = [graphs.passes(tokens), *engine.gradients()]
            replay_spread = max(replay_spread, spread(first, now))
            replays.add(tuple(digest(now)))
        if (len(eagers) == len(replays) == 1) or not replay_spread <= max(ROUNDING, APART * eager_spread):
            return (
                f"they differ from eager steps by {replay_spread:.1e} of the gradient, those among themselves by "
                f"{eager_spread:.1e}"
            )
        self._say(
            f"this model's passes do not repeat to the bit: eager ones differ by {eager_spread:.1e} of the gradient, "
            f"graphs' by {replay_spread:.1e}"
        )
        return None

    def _give_up(self, reason: str) -> None:
        self._graphs, self.replays = None, False
        self.engine.drop_gradients()
        self._return_memory()
        self._say(f"no CUDA graphs: {reason}")

    def _return_memory(self) -> None:
        """Free the memory of eager passes and lost graphs in the allocator's cache, which graphs do not use."""
        if self.engine.device.type == "cuda":
            torch.cuda.empty_cache()
