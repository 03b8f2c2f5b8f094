"""The noise between seeds in words: of each part of the architectures that are not told apart in it (fits.noise)."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.figures.palette import name_of
from analysis.fits.noise import NoisePart, SeedNoise, degrees_text


def noise_text(noise: SeedNoise) -> str:
    """ "0.70% of the loss, 16.8 degrees of freedom", or so much of each part."""
    if len(noise.parts) < 2:
        return _known(noise)
    return "; ".join(f"{listed([name_of(arch) for arch in part.archs])} {_known(part)}" for part in noise.parts)


def listed(names: Sequence[str]) -> str:
    """ "A, B and C"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _known(noise: SeedNoise | NoisePart) -> str:
    return f"{noise.s:.2%} of the loss, {degrees_text(noise.df)} degrees of freedom"
