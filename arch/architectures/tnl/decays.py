"""TNL's decays: the slopes of its heads, their half-lives, and whether these drift over sizes. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...config import ModelConfig


# `fixed` slopes are 2^-e, with e in even steps over the heads from the first number up to, not including, the second.
# If both ends were used, of two heads one would forget at once and one never, which cost 0.02 nats.
FASTEST_EXPONENT, SLOWEST_EXPONENT = 0.5, 8.0


def paper_slopes(n_heads: int) -> list[float]:
    """ALiBi's slopes: 2^(-8 (i+1) / h) for h a power of two; otherwise those of the next lower power of two,
    followed by every second slope of twice that power. The fastest depends on the number of heads."""
    power = 2 ** int(math.log2(n_heads))
    slopes = [2.0 ** (-8 * (i + 1) / power) for i in range(power)]
    if power < n_heads:
        slopes += [2.0 ** (-8 * (i + 1) / (2 * power)) for i in range(2 * power)][0::2][: n_heads - power]
    return slopes


def fixed_slopes(n_heads: int) -> list[float]:
    """2^-(0.5 + 7.5 i / h), i = 0 .. h - 1: the fastest is the same for every number of heads h, the slowest approaches
    2^-8 (half-lives in the first layer of 13, 48, 93 tokens for h = 2, 4, 8). docs/research/tnl-slopes.md has the loss
    by heads."""
    step = (SLOWEST_EXPONENT - FASTEST_EXPONENT) / n_heads
    return [2.0 ** -(FASTEST_EXPONENT + step * i) for i in range(n_heads)]


SLOPES = {"paper": paper_slopes, "fixed": fixed_slopes}  # TNLOptions.decay_slopes


def log_decays(layer: int, n_layers: int, n_heads: int, slopes: str = "paper") -> list[float]:
    """log lam of each head: -slope * (1 - layer / (n_layers - 1) + 1e-5); the last layer hardly decays."""
    depth = layer / (n_layers - 1) if n_layers > 1 else 0.0
    return [-slope * (1 - depth + 1e-5) for slope in SLOPES[slopes](n_heads)]


def fastest_half_life(config: ModelConfig) -> float:
    """Tokens after which the fastest head of TNL's first layer has forgotten half: ln 2 / its slope."""
    return math.log(2) / -min(log_decays(0, config.n_layers, config.n_heads, config.options.decay_slopes))


def drift(models: Sequence[tuple[str, ModelConfig]]) -> str | None:
    """A warning where TNL's fastest decay differs between sizes, because `paper` slopes depend on the number of heads:
    its law is then not a law of size alone. None where it does not differ.

    models: (name of the size, configuration) of all models of a study of this architecture.
    """
    models = [(name, config) for name, config in models if config.options.decay != "none"]
    if all(config.options.decay_slopes != "paper" for _, config in models):
        return None
    lives = {name: fastest_half_life(config) for name, config in models}
    slow, fast = max(lives, key=lambda name: lives[name]), min(reversed(lives), key=lambda name: lives[name])
    if math.isclose(lives[slow], lives[fast], rel_tol=1e-6):
        return None
    return (
        f"tnl: decay slopes `paper` follow from the number of heads: the fastest half-life is {lives[slow]:.1f} tokens "
        f"at {slow} and {lives[fast]:.1f} at {fast}, which confounds TNL's law; model.decay_slopes: fixed avoids it"
    )
