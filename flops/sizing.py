"""The configurations on the hardware grid that come closest to a target. Imports no torch.

The grid: widths in multiples of 128, below 1,024 of 64, and heads of 128 or 64 channels; below 256, as the tiny
presets, in multiples of 16, then of 4, with two heads (shapes.grid_shape). Any number of layers whose ratio of width to
layers lies in a range. At small widths, where layers and widths leave holes, g may differ from its rule by a quarter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from arch.config import ModelConfig
from arch.errors import InputError
from arch.registry import architecture

from .conventions import train_flops_per_token
from .params import count_params
from .quantity import quantity
from .registry import has_mlp
from .shapes import SMALL, every_arch, grid_shape, grid_widths

MOST_WIDTH = 131_072
# Width over layers. The paper's presets have 39 to 128. Without an MLP a model has twice the layers.
ASPECT = (32.0, 160.0)
MATCH_ASPECT = 2.0  # a match is at most so much wider or deeper, for its layers, than what it is matched to
# Small models are deeper for their width: the tiny presets have 8 to 64. The range's lower end, up to such a width.
DEEPER = ((64, 4.0), (256, 16.0))
LEAST_LAYERS = 2  # of the default range; one layer alone shows little of an architecture
CLOSE, COARSE = 0.02, 0.05  # a small width's g is varied above the first; a deviation above the second is reported

Measure = Callable[[ModelConfig], float]


@dataclass(frozen=True)
class SizedModel:
    """A configuration, its `value` of what is measured, and `deviation` = value / target - 1."""

    cfg: ModelConfig
    value: float
    deviation: float


def parameters(cfg: ModelConfig) -> float:
    """Non-embedding parameters."""
    return float(count_params(cfg).non_embedding)


def total_parameters(cfg: ModelConfig) -> float:
    return float(count_params(cfg).total)


def flops_under(convention: str) -> Measure:
    """Training FLOP per token under a convention."""
    return lambda cfg: train_flops_per_token(cfg, convention)


def aspect_of(text: str) -> tuple[float, float]:
    """(lo, hi) of "32:160". Raises InputError."""
    low, colon, high = text.partition(":")
    if not colon:
        raise InputError(f"--aspect: {text!r} is no range of width over layers: write it as 32:160")
    pair = quantity(low, "--aspect", 1e5), quantity(high, "--aspect", 1e5)
    if pair[0] > pair[1]:
        raise InputError(f"--aspect: {text!r} begins after its end: write it as {high}:{low}")
    return pair


def default_aspect(arch: str) -> tuple[float, float]:
    """ASPECT; half of it for an architecture without an MLP."""
    return ASPECT if has_mlp(arch) else (ASPECT[0] / 2, ASPECT[1] / 2)


def period_of(arch: str) -> int:
    """The layers of a pattern's period, 1 of any other architecture."""
    return len(architecture(arch).layers) or 1


def best(
    arch: str,
    measure: Measure,
    target: float,
    aspect: tuple[float, float] | None = None,
    top: int = 5,
    **changes: Any,
) -> list[SizedModel]:
    """The `top` widths whose best number of layers comes closest to `target`, closest first; `changes` are fields of
    ModelConfig (vocab_size, context_length, ..). Raises InputError where `target` is off the grid at either end."""
    shapes: list[SizedModel] = []
    smallest, largest = math.inf, 0.0
    for width, fewest, most in _widths(arch, aspect):
        least = measure(grid_shape(arch, width, fewest, **changes))
        smallest = min(smallest, least)
        if least > 2 * target and shapes:
            break
        shapes.append(_best_depth(arch, measure, target, (width, fewest, most), changes))
        largest = max(largest, shapes[-1].value)
    if not shapes:
        low, high = aspect or default_aspect(arch)
        raise InputError(f"--aspect {low:g}:{high:g}: no width of the grid has layers in this range: widen it")
    shapes.sort(key=lambda sized: abs(sized.deviation))
    if not -0.5 <= shapes[0].deviation <= 1:
        below = shapes[0].deviation > 0
        end = f"less than {smallest:,.0f}, the smallest" if below else f"more than {largest:.4g}, the largest"
        remedy = f"give a {'larger' if below else 'smaller'} target, or change --aspect"
        raise InputError(f"{target:.6g} is {end} that {arch} has on the grid: {remedy}")
    return shapes[:top]


def _widths(arch: str, aspect: tuple[float, float] | None) -> Iterator[tuple[int, int, int]]:
    """(width, fewest layers, most layers), of a pattern whole periods."""
    low, high = aspect or default_aspect(arch)
    period = period_of(arch)
    for width in grid_widths(MOST_WIDTH):
        least, deepest = 1, low
        if aspect is None:
            least = LEAST_LAYERS
            deepest = next((own * low / ASPECT[0] for below, own in DEEPER if width < below), low)
        fewest, most = max(least, math.ceil(width / high)), math.floor(width / deepest)
        fewest, most = -(-fewest // period) * period, most // period * period
        if fewest <= most:
            yield width, fewest, most


def _best_depth(
    arch: str, measure: Measure, target: float, span: tuple[int, int, int], changes: dict[str, Any]
) -> SizedModel:
    """Counts are affine in the number of periods (of layers, where there is no pattern): two of them give the number
    that fits. They are affine in g too, which is varied at a small width where the rule's misses."""
    width, fewest, most = span
    period = period_of(arch)
    first, second = (measure(grid_shape(arch, width, period * number, **changes)) for number in (1, 2))
    ideal = 1 + (target - first) / (second - first)
    depths = {min(max(period * rounded(min(ideal, 1e9)), fewest), most) for rounded in (math.floor, math.ceil)}
    shapes = [grid_shape(arch, width, layers, **changes) for layers in depths]
    closest = _closest(shapes, measure, target)
    if width >= SMALL or abs(closest.deviation) <= CLOSE or not has_mlp(arch):
        return closest
    wider = [other for cfg in shapes for other in _other_ffn(cfg, measure, target, changes)]
    return _closest([closest.cfg, *wider], measure, target)


def _closest(shapes: Sequence[ModelConfig], measure: Measure, target: float) -> SizedModel:
    candidates = [SizedModel(cfg, value, value / target - 1) for cfg in shapes for value in [measure(cfg)]]
    return min(candidates, key=lambda sized: (abs(sized.deviation), sized.cfg.n_layers))


def _other_ffn(cfg: ModelConfig, measure: Measure, target: float, changes: dict[str, Any]) -> Iterator[ModelConfig]:
    """The shape with the two g, multiples of 8 within a quarter of its own, around the one that meets the target."""

    def at(d_ffn: int) -> ModelConfig:
        return grid_shape(cfg.arch, cfg.d_model, cfg.n_layers, **changes | {"d_ffn": d_ffn})

    step = measure(at(cfg.d_ffn + 8)) - measure(cfg)
    if not step:  # convention `paper`: its g is 8d/3 whatever the configuration's is
        return
    ideal = cfg.d_ffn + 8 * (target - measure(cfg)) / step
    for rounded in (math.floor, math.ceil):
        d_ffn = 8 * rounded(min(ideal, 1e9) / 8)
        if 0.75 * cfg.d_ffn <= d_ffn <= 1.25 * cfg.d_ffn:
            yield at(d_ffn)


def missed(shapes: Sequence[SizedModel], what: str) -> list[str]:
    """A line for each that is further from the target than a size may be off before a comparison of sizes suffers."""
    return [
        f"{shape.cfg.arch}: the closest shape of the grid is {shape.deviation:+.1%} off {what}: give another target "
        "or --aspect"
        for shape in shapes
        if abs(shape.deviation) > COARSE
    ]


def matches(
    target: ModelConfig, convention: str, aspect: tuple[float, float] | None = None, archs: Sequence[str] = ()
) -> list[tuple[str, SizedModel]]:
    """For every architecture ("params" | "flops", its closest match to `target`): in non-embedding parameters, and in
    training FLOP per token under `convention`, at its vocabulary, context and rows of a chunk.

    Width over layers stays within a factor of 2 of its own (or in `aspect`); where one of the two has no gated
    MLP, of half or twice that.
    """
    same = {"vocab_size": target.vocab_size, "context_length": target.context_length}
    same |= {"tie_embeddings": target.tie_embeddings, "chunk_size": target.chunk_size}
    result = []
    for name in archs or every_arch():
        ratio = target.d_model / target.n_layers
        ratio *= 1 + (not has_mlp(target.arch))
        ratio /= 1 + (not has_mlp(name))
        span = aspect or (ratio / MATCH_ASPECT, ratio * MATCH_ASPECT)
        for kind, measure in (("params", parameters), ("flops", flops_under(convention))):
            result.append((kind, best(name, measure, measure(target), span, 1, **same)[0]))
    return result
