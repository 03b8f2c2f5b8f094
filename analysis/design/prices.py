"""What a token costs over model size, as real configurations of the asked architectures have it: in FLOP or in seconds.
Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis.design.proposal import Price
from analysis.fits.cost import Cost
from arch.config import ModelConfig
from arch.errors import InputError
from flops import train_flops_per_token
from flops.hardware import Device
from flops.ladder import Ladder, rung
from flops.pace import pace

KNOTS = np.geomspace(4e3, 4e10, 29)
LEAST_STEPS = 500  # of the shortest run: fewer are warm-up
MOST_BATCH = 65_536  # tokens
USUAL = 20.0  # tokens a parameter of the shortest run, where a batch must be guessed before there is one


def batch_of(shortest: float, context: int) -> int:
    """Tokens of a step, a power of two of sequences, so that a run of `shortest` tokens has LEAST_STEPS steps; at least
    one sequence, at most MOST_BATCH tokens."""
    rows = max(1.0, min(shortest / LEAST_STEPS, MOST_BATCH) / context)
    return int(2 ** math.floor(math.log2(rows))) * context


class Prices:
    """Of models with `fields` (vocab_size, context_length) of several architectures. Raises InputError where one has no
    size at all on the ladder."""

    def __init__(self, archs: Sequence[str], fields: dict[str, Any]) -> None:
        self.archs, self.context = tuple(archs), int(fields["context_length"])
        self.configs: dict[str, list[ModelConfig | None]] = {}
        for arch in archs:
            found: list[ModelConfig | None] = []
            for n in KNOTS.tolist():
                try:
                    found.append(rung(arch, Ladder(n, 4 * n, 2), n, fields).cfg)
                except InputError:  # no shape comes close to such a small size
                    found.append(None)
            if sum(cfg is not None for cfg in found) < 2:
                raise InputError(f"--arch {arch}: has no sizes on a ladder: scaling design needs them")
            self.configs[arch] = found

    def flops(self) -> Cost:
        """FLOP a token, convention `exact`: the geometric mean of the architectures, whose sizes are the same."""
        logs = np.log(
            [self._of(arch, lambda cfg, n: float(train_flops_per_token(cfg, "exact"))) for arch in self.archs]
        )
        return Cost(np.log(KNOTS), logs.mean(0), "exact")

    def in_flops(self) -> Price:
        """All architectures together."""
        rows = np.array(
            [self._of(arch, lambda cfg, n: float(train_flops_per_token(cfg, "exact"))) for arch in self.archs]
        )
        return _interpolated(rows.sum(0))

    def in_seconds(self, device: Device) -> Price:
        """Of one GPU or one core, all architectures together, at the batch of a size's usual shortest run."""

        def seconds(cfg: Any, n: float) -> float:
            batch = batch_of(USUAL * n, self.context)
            return pace(cfg, batch, device).step_seconds / batch

        return _interpolated(np.array([self._of(arch, seconds) for arch in self.archs]).sum(0))

    def _of(self, arch: str, told: Any) -> np.ndarray:
        """[knots]: over the sizes that there are, others interpolated in logarithms."""
        here = [(math.log(n), math.log(told(cfg, n))) for n, cfg in zip(KNOTS, self.configs[arch], strict=True) if cfg]
        x, y = np.array(here).T
        return np.exp(_line(np.log(KNOTS), x, y))


def _interpolated(values: np.ndarray) -> Price:
    x, y = np.log(KNOTS), np.log(values)
    return lambda n: np.exp(_line(np.log(n), x, y))


def _line(at: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Piecewise linear, going on beyond the ends."""
    place = np.clip(np.searchsorted(x, at) - 1, 0, len(x) - 2)
    slope = (y[place + 1] - y[place]) / (x[place + 1] - x[place])
    return np.asarray(y[place] + slope * (at - x[place]))
