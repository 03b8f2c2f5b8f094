"""What is thought of a loss surface before anything was trained: draws of worlds from the laws of the literature.

Exponents are those of published laws, with a spread that is wider than what they state. Levels are of losses: with a
vocabulary of bytes those that the project's trial study had (docs/research/verdicts.md), with a vocabulary of
sub-words those of the law itself, less what it overstates at small sizes. No pilot: no better prior.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.design.worlds import EXTRA, KINDS, MIDDLE_D, MIDDLE_N, World
from analysis.fits.surface import Surface
from flops.registry import entry_of
from flops.shapes import grid_shape

# Exponents of N_opt. Hoffmann et al. 2022 (approach 3), Besiroglu et al. 2024 (its points again), Porian et al. 2024
# (in agreement with Hoffmann's one half), Shen et al. 2024 (table 3: a / (a + b) of all its architectures, 0.58 to
# 0.59).
PUBLISHED = (0.452, 0.512, 0.50, 0.585)
SECOND_HAND = {"transformer": 0.46, "linear": 0.55}  # as reported, of models with softmax attention and without
SUM = (0.55, 0.80)  # of alpha and beta: 0.62 Hoffmann, 0.71 Besiroglu
SPREAD = 0.04  # of a, beside that of the laws
BYTES = 300  # a vocabulary of so many words or fewer is of bytes
# Of bytes, below this many parameters (geometric middle of the sizes), no fit of ours saw a floor of the loss: E was 0
# in 6 of 6 studies of 6k to 61k parameters, alpha and beta as below (docs/research/designs.md); terms at TINY_N and
# TINY_D.
TINY, TINY_N, TINY_D = 6e4, 2e4, 1e6
TINY_EXPONENTS, TINY_LEVEL, TINY_SHARE = ((0.06, 0.18), (0.2, 0.4)), (2.0, 2.2), (0.35, 0.75)  # share: of the N term
LEVELS = {"bytes": ((0.6, 1.0), (0.1, 0.3)), "words": ((1.6, 2.2), (0.8, 2.4))}  # E; terms at MIDDLE_N, MIDDLE_D
SHAPE = (256, 4)  # width, layers: of a model whose state is looked at
FORMS = (0.5, 0.125, 0.125, 0.125, 0.125)  # how often each of KINDS is drawn


@dataclass(frozen=True)
class Prior:
    """`kind`: of SECOND_HAND; `vocabulary`: of LEVELS; `source` in words; draws worlds. surfaces: of a pilot's
    replicates; None: the literature's. tiny: of sizes at which no floor of the loss is seen."""

    arch: str
    kind: str
    vocabulary: str
    source: str
    surfaces: Surface | None = None
    tiny: bool = False

    def draw(self, rng: np.random.Generator, kinds: Sequence[str] | None = None) -> World:
        """One world; of a kind of `kinds`, where given, else as FORMS has them."""
        kind = str(rng.choice(kinds) if kinds else rng.choice(KINDS, p=FORMS))
        extra = float(rng.uniform(*EXTRA[kind])) if kind in EXTRA else 0.0
        if self.surfaces is not None:
            found = self.surfaces.take(int(rng.integers(len(self.surfaces)))).to_dict()
            e, alpha, beta = found["E"], found["alpha"], found["beta"]
            a, b = found["A"] * MIDDLE_N**-alpha, found["B"] * MIDDLE_D**-beta
        elif self.tiny:
            alpha, beta = (rng.uniform(*ends) for ends in TINY_EXPONENTS)
            e, level, part = 0.0, rng.uniform(*TINY_LEVEL), rng.uniform(*TINY_SHARE)
            a = level * part * (MIDDLE_N / TINY_N) ** -alpha
            b = level * (1 - part) * (MIDDLE_D / TINY_D) ** -beta
        else:
            sources = [*PUBLISHED, *(one for one in [SECOND_HAND.get(self.kind)] if one is not None)]
            share = float(np.clip(rng.choice(sources) + SPREAD * rng.standard_normal(), 0.3, 0.7))
            total = rng.uniform(*SUM)
            alpha, beta = (1 - share) * total, share * total
            (low, high), terms = LEVELS[self.vocabulary]
            e, (a, b) = rng.uniform(low, high), rng.uniform(*terms, 2)
        return World(kind, float(e), float(alpha), float(beta), float(a), float(b), extra, int(rng.integers(1 << 30)))


def literature(arch: str, vocab_size: int, middle: float = np.inf) -> Prior:
    """Of an architecture, from the literature alone; middle: of the sizes [parameters], where they are known."""
    words = "bytes" if vocab_size <= BYTES else "words"
    if words == "bytes" and middle < TINY:
        source = "studies of as few parameters, in which no floor of the loss was seen"
        return Prior(arch, kind_of(arch), words, source, tiny=True)
    return Prior(arch, kind_of(arch), words, f"laws of the literature, wide; losses at a vocabulary of {words}")


def kind_of(arch: str) -> str:
    """transformer where what decoding keeps grows with the text, else linear; "" where its costs do not tell."""
    state = entry_of(arch).state
    if state is None:
        return ""
    cfg = grid_shape(arch, SHAPE[0], SHAPE[1])
    short, long = (sum(state(cfg, n).values()) for n in (1024, 2048))
    return "transformer" if long > 1.5 * short else "linear"
