"""The noise between seeds in words: of each part of the architectures that are not told apart in it (fits.pooling)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.figures.palette import name_of
from analysis.fits.noise import degrees_text


def noise_of(noise: dict[str, Any], group: str) -> dict[str, Any]:
    """`s` and `df` that the intervals of a group rest on: of its part; of all where it has no seeds of its own."""
    return next((part for part in noise["parts"] if group in part["archs"]), noise)


def noise_text(noise: dict[str, Any]) -> str:
    """ "0.70% of the loss, 16.8 degrees of freedom", or so much of each part."""
    if len(noise["parts"]) < 2:
        return _known(noise)
    return "; ".join(f"{listed([name_of(arch) for arch in part['archs']])} {_known(part)}" for part in noise["parts"])


def listed(names: Sequence[str]) -> str:
    """ "A, B and C"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _known(noise: dict[str, Any]) -> str:
    return f"{noise['s']:.2%} of the loss, {degrees_text(noise['df'])} degrees of freedom"
