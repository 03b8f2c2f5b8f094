"""When a run's steps are replayed as CUDA graphs: checked at every start, given up with one line where something is in
the way.

The first step runs both ways on the same weights: forward and backward by DeepSpeed's engine, then as graphs, and
losses and gradients must be the same to the last bit before anything is updated. Some kernels add in any order
(cuDNN's attention), so that passes of one kind differ: then graphs must lie nearer to them than one rounding to bf16,
or about as near as they lie to each other, and a line says how well this run repeats.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from arch.recorder import CudaRecorder, Recorder, reason_of

from .graphs import StepGraphs, digest, spread

if TYPE_CHECKING:
    from .engine import Engine

PASSES = 4  # more of either kind, where the first two differ
ROUNDING = 1e-3  # of the gradient; what one number loses in bf16 is up to 4e-3 of it
APART = 2  # times the widest spread of eager passes, which is that of a few


def obstacle(device: torch.device, stage: int) -> str | None:
    """Why steps at this ZeRO stage on this device cannot be replayed, or None. Never asked on a CPU."""
    if stage:
        return f"training.zero_stage {stage}: DeepSpeed asks the host for the gradients' norm"
    if torch.version.hip:
        return f"{torch.cuda.get_device_name(device)} is AMD's: not tried there"
    return None


class Replay:
    """The steps of `engine` as graphs. `say` gets one line where they are not, or not to the bit."""

    def __init__(self, engine: Engine, say: Callable[[str], None], record: Recorder | None = None) -> None:
        self._engine, self._say = engine, say
        self._record = record
        self._graphs: StepGraphs | None = None

    def step(self, tokens: Tensor, lr: float) -> tuple[Tensor, Tensor] | None:
        """As Engine.step; None where this step, and all that follow, must be made without graphs."""
        if self._graphs is None:
            return self._first_step(tokens, lr)
        if not self._graphs.fits(tokens):
            self._give_up(f"a batch has the shape {list(tokens.shape)}")
            return None
        self._graphs.passes(tokens)
        self._engine.average_gradients()
        told = self._graphs.update(lr)
        self._engine.count_step()
        return told

    def forget(self) -> None:
        """Record anew at the next step."""
        self._graphs = None
        self._engine.drop_gradients()

    def _first_step(self, tokens: Tensor, lr: float) -> tuple[Tensor, Tensor] | None:
        """Both ways, then the engine's own update: it makes what the update's graph needs."""
        engine = self._engine
        if reason := engine.first_of_any(self._check(tokens)):
            self._give_up(reason)
            return None
        graphs = self._graphs
        assert graphs is not None
        loss = graphs.passes(tokens) / engine.accumulate  # the check may have left those of another pass
        engine.average_gradients()
        norm = engine.update(lr)
        found: str | None = None
        self._return_memory()
        try:
            graphs.record_update()
        except RuntimeError as error:
            found = reason_of(error)
        if reason := engine.first_of_any(found):
            self._give_up(reason)
        return loss, norm

    def _check(self, tokens: Tensor) -> str | None:
        """Record forward and backward; why they cannot be, or are not the engine's; None where all is well."""
        engine = self._engine
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
        """Why graphs whose pass was not the eager one (their digests) are wrong, or None where they are not."""
        engine, eagers, replays = self._engine, {tuple(eager)}, {tuple(replayed)}
        first: list[Tensor] = []
        own = apart = 0.0
        for _ in range(PASSES):
            engine.drop_gradients()
            now = [engine.passes(tokens, average=False), *engine.gradients()]
            own = max(own, spread(first, now)) if first else 0.0
            first = first or now
            eagers.add(tuple(digest(now)))
            del now
            graphs.restore_gradients()
            now = [graphs.passes(tokens), *engine.gradients()]
            apart = max(apart, spread(first, now))
            replays.add(tuple(digest(now)))
        if (len(eagers) == len(replays) == 1) or not apart <= max(ROUNDING, APART * own):
            return f"they differ from eager steps by {apart:.1e} of the gradient, those among themselves by {own:.1e}"
        told = f"eager ones differ by {own:.1e} of the gradient, graphs' by {apart:.1e}"
        self._say(f"this model's passes do not repeat to the bit: {told}")
        return None

    def _give_up(self, reason: str) -> None:
        self._graphs = None
        self._engine.replay = None
        self._engine.drop_gradients()
        self._return_memory()
        self._say(f"no CUDA graphs: {reason}")

    def _return_memory(self) -> None:
        """What eager passes and lost graphs leave in the allocator's cache, which graphs do not draw from."""
        if self._engine.device.type == "cuda":
            torch.cuda.empty_cache()
