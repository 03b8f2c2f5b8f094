"""What a design takes from a pilot study: loss surfaces, and the noise of its runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from arch.errors import InputError
from data.vocabulary import portable

if TYPE_CHECKING:
    from analysis.design.worlds import Prior

    from .fit_laws import Source


@dataclass(frozen=True)
class Pilot:
    """The surfaces that the runs of each architecture allow, and the standard deviation of log loss between seeds; None
    where no size has two."""

    priors: dict[str, Prior]
    seeds: float | None


def read_pilot(study: str, archs: list[str], tokenizer: str, others: bool = False) -> Pilot:
    """Read a pilot study. Raises InputError where its tokens are of another tokenizer, or its runs do not determine the
    surface of an architecture. others: whether it may have no runs of an architecture, which has no prior then."""
    import numpy as np

    from analysis.design.worlds import Prior
    from analysis.fits.parametric import fit_parametric
    from analysis.fits.prepare import grouped
    from analysis.fits.solver import LEAST_SQUARES

    from .fit_laws import of_runs, of_studies
    from .options import FittedOptions

    request = FittedOptions(study=study, as_json=True).request()
    if portable(own := request.study.corpus.tokenizer) != portable(tokenizer):
        raise InputError(f"--pilot {study}: its tokens are of {own}, and the design's of {tokenizer}: leave it out")
    try:
        source = of_runs(of_studies([request], None), None)
    except InputError as error:
        raise InputError(f"--pilot {study}: {error}") from None
    assert source.study is not None
    runs = grouped(source.study).runs
    priors = {}
    for arch in archs:
        of_arch = sorted({str(name) for name in runs.loc[runs["arch"] == arch, "group"]})
        groups = [name for name in of_arch if name in source.reading.groups]
        if others and not of_arch:
            continue
        if not groups:
            left = "; ".join(f"{number} {why}" for why, number in source.reading.dropped.items())
            why = f"none of its runs of {arch} can be fitted ({left})" if of_arch else f"has no runs of {arch}"
            raise InputError(f"--pilot {study}: {why}: leave out --pilot, or --arch {arch}")
        if len(groups) > 1:
            raise InputError(
                f"--pilot {study}: has a fit of {arch} for each point of its axes ({', '.join(groups)}), and one is "
                f"needed: declare the axes grid.nuisance, or leave out --pilot"
            )
        try:
            fit = fit_parametric(source.reading.groups[groups[0]], objective=LEAST_SQUARES, n_replicates=400)
        except InputError as error:
            raise InputError(f"--pilot {study}: {arch}: {error}") from None
        if fit.draws is None:
            raise InputError(f"--pilot {study}: {arch}: {fit.why_no_draws}")
        surfaces = fit.draws.surface
        good = np.all([np.isfinite(v) & (v > 0) for v in (surfaces.A, surfaces.B, surfaces.alpha, surfaces.beta)], 0)
        if not good.any():
            raise InputError(f"--pilot {study}: {arch}: its runs identify no surface to draw from")
        text = f"{int(good.sum())} surfaces that the runs of {study} allow"
        priors[arch] = Prior(text, surfaces=surfaces.take(good))
    return Pilot(priors, _between_seeds(source))


def _between_seeds(source: Source) -> float | None:
    """The standard deviation of log loss between the seeds of all architectures: along their curves, and of decayed
    losses, which are one a run, at their ends."""
    import numpy as np

    from analysis.fits.noise import same_runs
    from analysis.fits.seeds import seed_noise_of

    groups = list(source.reading.groups.values())
    if source.reading.points == "curves":
        noise = seed_noise_of(groups)
        return None if noise is None else noise.s
    n_params, n_tokens, loss = (
        np.log(np.concatenate([getattr(points, of) for points in groups])) for of in ("n_params", "n_tokens", "loss")
    )
    trunk, recipe = (np.concatenate([getattr(points, of) for points in groups]) for of in ("trunk", "recipe"))
    of_ends = same_runs(loss, n_params, n_tokens, trunk, recipe, None)
    return None if of_ends is None else of_ends.s
