"""What a token costs over model size, as real configurations of the asked architectures have it: in FLOP or in seconds.
Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from analysis.design.proposal import Price
from analysis.fits.cost import Cost
from arch.config import ModelConfig
from arch.errors import InputError
from flops import train_flops_per_token
from flops.hardware import Device
from flops.ladder import Ladder, rung
from flops.pace import START_S, pace, start_of

KNOTS = np.geomspace(4e3, 4e10, 29)
LEAST_STEP_S = 1e-9  # that its logarithm is finite
ROWS = 32  # sequences of the larger of two batches, which give the cost of a step beside that of its tokens


class Prices:
    """Prices of models of several architectures with `fields` (vocab_size, context_length). Raises InputError where an
    architecture has no size on the ladder."""

    def __init__(self, archs: Sequence[str], fields: dict[str, Any]) -> None:
        self.archs, self.context = tuple(archs), int(fields["context_length"])
        self.configs: dict[str, list[ModelConfig | None]] = {}
        for arch in archs:
            configs: list[ModelConfig | None] = []
            for n in KNOTS.tolist():
                try:
                    configs.append(rung(arch, Ladder(n, 4 * n, 2), n, fields).cfg)
                except InputError:  # no shape comes close to such a small size
                    configs.append(None)
            if sum(cfg is not None for cfg in configs) < 2:
                raise InputError(f"--arch {arch}: has no sizes on a ladder: scaling design needs them")
            self.configs[arch] = configs

    def flops(self) -> Cost:
        """The cost of a token in FLOP, convention `exact`: the geometric mean of the architectures, whose sizes are the
        same."""
        logs = np.log(
            [self._of(arch, lambda cfg, n: float(train_flops_per_token(cfg, "exact"))) for arch in self.archs]
        )
        return Cost(np.log(KNOTS), logs.mean(0), "exact")

    def in_flops(self) -> Price:
        """The price in FLOP, of all architectures together."""
        return Price(self._sum(lambda cfg, n: float(train_flops_per_token(cfg, "exact"))))

    def in_seconds(self, device: Device) -> Price:
        """The price in seconds of one GPU or one core, of all architectures together."""

        def seconds(cfg: ModelConfig, rows: int) -> float:
            return pace(cfg, rows * self.context, device).step_seconds

        def token(cfg: ModelConfig, n: float) -> float:
            return (seconds(cfg, ROWS) - seconds(cfg, 1)) / ((ROWS - 1) * self.context)

        def step(cfg: ModelConfig, n: float) -> float:
            return max(seconds(cfg, 1) - token(cfg, n) * self.context, LEAST_STEP_S)

        start = len(self.archs) * start_of(device)
        return Price(self._sum(token), self._sum(step), start, START_S[device.unit], self.context)

    def _sum(self, price_of: Callable[[ModelConfig, float], float]) -> Callable[[np.ndarray], np.ndarray]:
        return _interpolated(np.array([self._of(arch, price_of) for arch in self.archs]).sum(0))

    def _of(self, arch: str, price_of: Any) -> np.ndarray:
        """[knots]: the prices of the sizes that exist; others are interpolated in logarithms."""
        sizes = ((n, cfg) for n, cfg in zip(KNOTS, self.configs[arch], strict=True) if cfg)
        x, y = np.array([(math.log(n), math.log(price_of(cfg, n))) for n, cfg in sizes]).T
        return np.exp(_line(np.log(KNOTS), x, y, np.diff(y) / np.diff(x)))


def _interpolated(values: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    x, y = np.log(KNOTS), np.log(values)
    slopes = np.diff(y) / np.diff(x)
    return lambda n: np.exp(_line(np.log(n), x, y, slopes))


def _line(at: np.ndarray, x: np.ndarray, y: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """Piecewise linear interpolation, continued beyond the ends."""
    place = np.minimum(np.maximum(x.searchsorted(at) - 1, 0), len(x) - 2)  # np.clip takes longer than the search
    return np.asarray(y[place] + slopes[place] * (at - x[place]))
