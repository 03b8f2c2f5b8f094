"""What a token costs over model size, as real configurations of the asked architectures have it: in FLOP or in seconds.
Imports no torch."""

from __future__ import annotations

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
        self.context = int(fields["context_length"])
        self.configs: list[dict[float, ModelConfig]] = []  # of each architecture, by size
        for arch in archs:
            configs = {}
            for n in KNOTS.tolist():
                try:
                    configs[n] = rung(arch, Ladder(n, 4 * n, 2), n, fields).cfg
                except InputError:  # no shape comes close to such a small size
                    continue
            if len(configs) < 2:
                raise InputError(f"--arch {arch}: has no sizes on a ladder: scaling design needs them")
            self.configs.append(configs)

    def flops(self) -> Cost:
        """The cost of a token in FLOP, convention `exact`: the geometric mean of the architectures, whose sizes are the
        same."""
        return Cost(np.log(KNOTS), np.log(self._at_knots(_flops)).mean(0), "exact")

    def in_flops(self) -> Price:
        """The price in FLOP, of all architectures together."""
        return Price(self._sum(_flops))

    def in_seconds(self, device: Device) -> Price:
        """The price in seconds of one GPU or one core, of all architectures together."""

        def seconds(cfg: ModelConfig, rows: int) -> float:
            return pace(cfg, rows * self.context, device).step_seconds

        def token(cfg: ModelConfig) -> float:
            return (seconds(cfg, ROWS) - seconds(cfg, 1)) / ((ROWS - 1) * self.context)

        def step(cfg: ModelConfig) -> float:
            return max(seconds(cfg, 1) - token(cfg) * self.context, LEAST_STEP_S)

        start = len(self.configs) * start_of(device)
        return Price(self._sum(token), self._sum(step), start, START_S[device.unit], self.context)

    def _sum(self, price_of: Callable[[ModelConfig], float]) -> Callable[[np.ndarray], np.ndarray]:
        return Cost(np.log(KNOTS), np.log(self._at_knots(price_of).sum(0)), "").per_token

    def _at_knots(self, price_of: Callable[[ModelConfig], float]) -> np.ndarray:
        """[architectures, knots]: prices, of sizes that do not exist between their neighbours in logarithms."""
        rows = []
        for configs in self.configs:
            prices = [price_of(cfg) for cfg in configs.values()]
            rows.append(Cost(np.log([*configs]), np.log(prices), "").per_token(KNOTS))
        return np.array(rows)


def _flops(cfg: ModelConfig) -> float:
    return float(train_flops_per_token(cfg, "exact"))
