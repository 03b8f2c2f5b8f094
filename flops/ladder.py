"""A ladder of sizes: non-embedding parameters evenly spaced in the logarithm, the same for all architectures.

At each size the architectures share depth, width and heads, and each has the FFN width that meets the target. Without
an FFN (Mamba) an architecture has a depth and a width of its own; so has a pattern where the shared depth is no
multiple of its period (the ladder's `layers` gives all sizes one depth), some of its layers have no FFN, or no FFN
width meets the target: it then has the next shape by the rule of which one does, its width over layers within a factor
of 2 of the rule's. Imports no torch.

The rule of the common shape, for a target of N parameters:

- width over layers is 64 (N / 10^8)^0.15, between 32 at 10^6 and 128 at 10^10, as the published ladders have it (GPT-3,
  Brown et al. 2020, table 2.1: 64 at 125M, 85 at 1.3B, 128 from 6.7B on); half of it without an FFN, which leaves room
  for twice the layers;
- one head dimension for all sizes: the largest of 128, 64, 32, 16 of which the smallest size has four heads, as the
  smallest model of Shen et al. 2024 has, or two of 16; two of 8 where two of 16 were wider than the rule (below about
  15,000 parameters);
- widths are multiples of it, of 16 below 256, of 64 from there on; at least two layers and two heads;
- of all such, the one whose 12 l d^2, the parameters with an FFN of 8/3 of the width, and whose width over layers come
  closest to N and to the rule; where a share s of a pattern's layers has an FFN, it is 6 (1 + s) l d^2, and width over
  layers (1 + s) / 2 of the rule's;
- FFN widths are multiples of 8 below a width of 256, of 16 below 1,024, of 64 from there on; of 2 below a width of 64
  where no multiple of 8 is close enough to N;
- without an FFN: widths are multiples of 16, where the ideal one is 512 or more of 64; of the shapes that are close
  enough to N, one that is close to N and to the rule, and whose width is a multiple of 32 (Mamba2's heads are then 64
  wide, else 32).

With `layers` every size has that depth, and the width alone grows: of the widths, the one whose 12 l d^2 comes closest
to N. Where a law is fitted to sizes of a few layers, that is smoother than any rule: a depth of 4 that becomes 8 as the
width falls from 256 to 192 changes what more tokens are worth (docs/research/second-study.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from arch import amounts
from arch.amounts import counted
from arch.errors import InputError
from arch.presets import shaped
from arch.registry import Architecture, architecture, kinds_of

from .entry import Entry
from .registry import entry_of, has_mlp
from .shapes import common_shape as basic_shape
from .sizing import MATCH_ASPECT, Measure, SizedModel, flops_under, parameters, period_of

MATCHES = ("params", "flops")
HEADS = (128, 64, 32, 16)
TINY_HEAD, WIDER = 8, 1.15  # where two of the smallest of HEADS are that many times wider than the rule
FINE_FFN, FINE_BELOW = 2, 64  # a finer step of the FFN's width, below this width of the model
ENOUGH_HEADS, LEAST_HEADS, LEAST_LAYERS = 4, 2, 2
FFN = (0.25, 8.0)  # narrowest and widest, over the width of the model
LEAST, MOST, MOST_SIZES, MOST_LAYERS = 1e3, 1e13, 1000, 1000
OF_ALL = ("vocab_size", "context_length", "tie_embeddings")  # of a study's changes, what its LLaMA has too
REFERENCE = "llama"  # whose FLOP per token are the target where these are matched
# How far a size may be off its target; CLOSE_SMALL: below 10^6 parameters, without an FFN, where depth and width are
# coarse, below 10^7.
CLOSE, CLOSE_SMALL = 0.01, 0.03


@dataclass(frozen=True)
class Ladder:
    """`count` targets from `start` to `end` non-embedding parameters, evenly spaced in the logarithm; one where these
    are equal.

    match: params, or flops: the training FLOP per token (`exact`) of the LLaMA that has the target's parameters.
    aspect: width over layers of all sizes; None: by the rule. head_dim: None: by the rule. layers: of all sizes; None:
    by the rule. Raises InputError.
    """

    start: float
    end: float
    count: int
    match: str = "params"
    aspect: float | None = None
    head_dim: int | None = None
    layers: int | None = None

    def __post_init__(self) -> None:
        for what, value in (("from", self.start), ("to", self.end)):
            if not LEAST <= value <= MOST:
                raise InputError(f"{what}: {value:g} parameters: write {LEAST:g} to {MOST:g}")
        is_single = self.count == 1 and self.start == self.end
        if not self.start < self.end and not is_single:
            raise InputError(f"from: {amounts.count(self.start)} is not below to: {amounts.count(self.end)}")
        if not 2 <= self.count <= MOST_SIZES and not is_single:
            raise InputError(f"count: {counted(self.count, 'size')}: write 2 to {MOST_SIZES}")
        if self.match not in MATCHES:
            raise InputError(f"match: must be {' or '.join(MATCHES)}, not {self.match!r}")
        if self.aspect is not None and not 1 <= self.aspect <= 10_000:
            raise InputError(f"aspect: {self.aspect:g} is no width over layers: write 1 to 10000")
        odd = self.head_dim is not None and (self.head_dim % 16 or not 16 <= self.head_dim <= HEADS[0])
        if odd and self.head_dim != TINY_HEAD:
            raise InputError(f"head_dim: {self.head_dim} is no multiple of 16 up to {HEADS[0]}, nor {TINY_HEAD}")
        if self.layers is not None and not LEAST_LAYERS <= self.layers <= MOST_LAYERS:
            raise InputError(f"layers: {self.layers}: write {LEAST_LAYERS} to {MOST_LAYERS}")
        if self.layers is not None and self.aspect is not None:
            raise InputError("layers: with aspect nothing is left that could meet a size: leave one of them out")
        if len(set(self.names)) < self.count:
            raise InputError(
                f"count: {counted(self.count, 'size')} lie so close that they share names of three digits: write fewer"
            )

    @property
    def targets(self) -> tuple[float, ...]:
        """Non-embedding parameters."""
        step = math.log(self.end / self.start) / max(self.count - 1, 1)
        return (*(self.start * math.exp(step * i) for i in range(self.count - 1)), self.end)

    @property
    def names(self) -> tuple[str, ...]:
        """n1m, n2.27m, ..: the targets to three digits."""
        return tuple(f"n{amounts.count(target).lower()}" for target in self.targets)

    @property
    def heads(self) -> int:
        """The head dimension of all sizes."""
        if self.head_dim is not None:
            return self.head_dim
        width = (self.start * aspect_at(self, self.start) / 12) ** (1 / 3)
        least = TINY_HEAD if LEAST_HEADS * HEADS[-1] > WIDER * width else HEADS[-1]
        return next((dim for dim in HEADS if ENOUGH_HEADS * dim <= width), least)


def aspect_at(ladder: Ladder, target: float) -> float:
    """Width over layers, where there is an FFN."""
    if ladder.layers is not None:
        return math.sqrt(target / (12 * ladder.layers)) / ladder.layers
    return 64 * (target / 1e8) ** 0.15 if ladder.aspect is None else ladder.aspect


def common_shape(ladder: Ladder, target: float) -> dict[str, int]:
    """n_layers, d_model and n_heads of architectures whose layers have an FFN."""
    return common_shapes(ladder, target)[0]


def common_shapes(ladder: Ladder, target: float, period: int = 1, share: float = 1.0) -> list[dict[str, int]]:
    """n_layers, d_model and n_heads of architectures of which a share of the layers has an FFN, in multiples of a
    period: the shape closest to the rule, then those whose width over layers is near it, the closest first."""
    weight, aspect = 6 * (1 + share), aspect_at(ladder, target) * (1 + share) / 2
    ideal = (target * aspect / weight) ** (1 / 3)

    def off(shape: tuple[int, int]) -> float:
        return abs(math.log(shape[0] / shape[1] / aspect))

    def distance(shape: tuple[int, int]) -> float:
        return 3 * abs(math.log(weight * shape[1] * shape[0] ** 2 / target)) + off(shape)

    shapes = []
    for width in _widths(ladder.heads, 64, ideal):
        periods = max(LEAST_LAYERS, ladder.layers or target / (weight * width**2)) / period
        shapes += [(width, period * max(1, rounded(periods))) for rounded in (math.floor, math.ceil)]
    first, *others = sorted(dict.fromkeys(shapes), key=distance)
    return [
        {"n_layers": layers, "d_model": width, "n_heads": width // ladder.heads}
        for width, layers in (first, *(shape for shape in others if off(shape) <= math.log(MATCH_ASPECT)))
    ]


def _widths(unit: int, wide: int, ideal: float) -> list[int]:
    """Multiples of `unit`, at least two, from 256 on of `wide` too, within a factor of 2 of the ideal; else the
    smallest."""
    larger = math.lcm(unit, wide)
    widths = [*range(2 * unit, 256, unit), *range(-(-256 // larger) * larger, int(2 * ideal) + 1, larger)]
    return [width for width in widths if ideal / 2 <= width <= 2 * ideal] or [widths[0]]


def ffn_step(width: int) -> int:
    """FFN widths are multiples of this."""
    return 8 if width < 256 else 16 if width < 1024 else 64


def limit_at(arch: str, target: float) -> float:
    """How far a size of `arch` may be off its target, as a share of it."""
    return CLOSE if target >= (1e6 if has_mlp(arch) else 1e7) else CLOSE_SMALL


def rung(arch: str, ladder: Ladder, target: float, changes: Mapping[str, Any]) -> SizedModel:
    """The model of `arch` for one of the ladder's targets, with `changes` to fields that are no part of its shape
    (vocab_size, context_length, norm, ..). Raises InputError, which names the nearest, where none is close enough."""
    kinds = kinds_of(arch)
    known = tuple(architecture(name) for name in dict.fromkeys((arch, *kinds)))
    return _rung(tuple(map(entry_of, kinds)), known, ladder, target, tuple(sorted(changes.items())))


@lru_cache(maxsize=65_536)
def _rung(
    entries: tuple[Entry, ...],
    known: tuple[Architecture, ...],
    ladder: Ladder,
    target: float,
    changes_given: tuple[tuple[str, Any], ...],
) -> SizedModel:
    """`entries` and `known` are those of the architecture and its kinds now: a plugin may register others."""
    arch, options = known[0].name, dict(changes_given)
    goal = target
    measure: Measure = parameters
    if ladder.match == "flops":
        measure = flops_under("exact")
        same = {name: value for name, value in options.items() if name in OF_ALL}
        by_params = replace(ladder, match="params")
        goal = measure(rung(REFERENCE, by_params, target, same).cfg)
    limit = limit_at(arch, target)
    search = _by_ffn if has_mlp(arch) else _by_depth
    best, counts = search(arch, ladder, target, goal, measure, options, limit)
    if abs(best.deviation) > limit:
        raise InputError(_unreachable(ladder, goal, limit, counts, best.cfg.context_length))
    return best


def _by_ffn(
    arch: str, ladder: Ladder, target: float, goal: float, measure: Measure, options: dict[str, Any], limit: float
) -> tuple[SizedModel, list[float]]:
    """The common shape, of a pattern the first that can, with the FFN width that comes closest to the goal, and the
    counts with the widths around the one that meets it; where none is close enough, those of the first shape."""
    layers = architecture(arch).layers or (arch,)
    if ladder.layers is not None and ladder.layers % len(layers):
        raise InputError(f"layers: {ladder.layers} does not hold the {len(layers)} layers that {arch} repeats")
    shapes = common_shapes(ladder, target, len(layers), sum(map(has_mlp, layers)) / len(layers))
    misses = []
    for shape in shapes if len(layers) > 1 else shapes[:1]:
        for step in (ffn_step(shape["d_model"]), *([FINE_FFN] if shape["d_model"] < FINE_BELOW else [])):
            closest = _closest_ffn(arch, shape, step, goal, measure, options)
            if abs(closest[0].deviation) <= limit:
                return closest
        misses.append(closest)
    return misses[0]


def _closest_ffn(
    arch: str, shape: dict[str, int], step: int, goal: float, measure: Measure, options: dict[str, Any]
) -> tuple[SizedModel, list[float]]:
    """A shape with the FFN width, a multiple of `step`, that comes closest to the goal, and the counts with those
    around the one that meets it: counts are affine in it."""

    def at(steps: int) -> SizedModel:
        fields = shape | {"d_ffn": step * steps}
        cfg = shaped(arch, "", fields, **{"n_layers": fields["n_layers"], "d_ffn": fields["d_ffn"]} | options)
        value = measure(cfg)
        return SizedModel(cfg, value, value / goal - 1)

    least, most = (max(1, int(bound * shape["d_model"] / step)) for bound in FFN)
    narrow, wide = at(least), at(least + 1)
    wanted = least + (goal - narrow.value) / (wide.value - narrow.value)
    candidates = [at(min(max(rounded(wanted), least), most)) for rounded in (math.floor, math.ceil)]
    return min(candidates, key=lambda narrow: abs(narrow.deviation)), [narrow.value for narrow in candidates]


def _by_depth(
    arch: str, ladder: Ladder, target: float, goal: float, measure: Measure, options: dict[str, Any], limit: float
) -> tuple[SizedModel, list[float]]:
    """Of the widths with the numbers of layers around the one that meets the goal, the shape that is close to it and to
    half of the common width over layers, and the counts of all: they are affine in the number of layers."""
    aspect, period = aspect_at(ladder, target) / 2, period_of(arch)
    ideal = (target * aspect / 6) ** (1 / 3)

    def at(width: int, layers: int) -> SizedModel:
        cfg = shaped(arch, "", basic_shape(width, layers), **{"n_layers": layers} | options)
        value = measure(cfg)
        return SizedModel(cfg, value, value / goal - 1)

    def distance(shape: tuple[float, int, int]) -> tuple[bool, float]:
        value, width, layers = shape
        off = abs(value / goal - 1)
        other = abs(math.log(width / layers / aspect)) + (0.5 if width % 32 else 0.0)
        return off > limit, off if off > limit else off / CLOSE + 3 * other

    shapes: list[tuple[float, int, int]] = []
    for width in _widths(16, 16 if ideal < 512 else 64, ideal):
        first, second = (at(width, periods * period).value for periods in (1, 2))
        best = 1 + (goal - first) / (second - first)
        for periods in (max(-(-LEAST_LAYERS // period), rounded(best)) for rounded in (math.floor, math.ceil)):
            shapes.append((first + (second - first) * (periods - 1), width, periods * period))
    _, width, layers = min(shapes, key=distance)
    return at(width, layers), [value for value, _, _ in shapes]


def _unreachable(ladder: Ladder, goal: float, limit: float, counts: list[float], context: int) -> str:
    what = "parameters" if ladder.match == "params" else f"FLOP per token (exact) at context_length {context:,}"
    around = [max((value for value in counts if value < goal), default=None)]
    around.append(min((value for value in counts if value >= goal), default=None))
    nearest = [f"{value:,.0f}" for value in around if value is not None]
    return (
        f"no size within {limit:.0%} of {goal:,.0f} {what} on the ladder: the nearest "
        f"{'have' if len(nearest) > 1 else 'has'} {' and '.join(nearest)}: move from or to "
        f"there, or give another aspect or head_dim"
    )
