"""How the fits were made, in paragraphs: the report's section on methods."""

from __future__ import annotations

from typing import Any

from analysis.figures.palette import name_of
from analysis.fits.noise import SeedNoise
from analysis.fits.settings import FitSettings
from analysis.fits.study_fits import StudyFits
from analysis.report.left_out import sizes_left_out
from analysis.report.noise import listed
from analysis.report.notes import interval_text, method_notes


def convention_text(fits: StudyFits) -> str:
    named = fits.conventions
    return f"training FLOP, convention '{named['C']}'; N: {named['N']}; D: training tokens"


def phase_notes(fits: StudyFits) -> list[str]:
    """Which losses were fitted where the learning rate of some runs decays: a sentence, or none."""
    text = str((fits.points or {}).get("text", ""))
    return [f"{text[:1].upper()}{text[1:]}."] if text else []


def methods(fits: StudyFits) -> list[str]:
    settings = fits.settings
    return [
        f"C: {convention_text(fits)}. Loss: {fits.conventions['L']}. The seeds of a size are averaged in log loss.",
        *phase_notes(fits),
        *_surface_text(fits),
        f"The envelope is the lowest loss among the sizes whose curve covers C, at {settings.grid_points} "
        f"log-spaced values of C in the range ({_range_text(fits)}). {_loss_text(settings)} These points are not "
        "independent: R^2 says how straight the line is, not how well it is known.",
        f"{_crossings_text(settings)} {_points_text(settings)}",
        f"{interval_text(fits)}{_noise_text(fits)} These are not bootstrap intervals over runs.",
        *method_notes(fits)[1:],
    ]


def _surface_text(fits: StudyFits) -> list[str]:
    """How the surfaces were fitted and what their intervals are of; none without such a law."""
    laws = [law for law in fits.laws if law.approach == "parametric"]
    intervals = {law.intervals.method: law.intervals.estimand for law in laws}
    if not laws:
        return []
    told = "; ".join(f"{method} ({about})" if about else method for method, about in intervals.items())
    gone = "; ".join(f"{', '.join(sizes)} of {name_of(group)}" for group, sizes in sizes_left_out(fits).items())
    without = f" Without sizes that lie above what the surface of the larger ones says: {gone}." if gone else ""
    return [
        f"The parametric approach fits L = E + A / N^alpha + B / D^beta to each run's curve from "
        f"{fits.settings.first_share:.0%} of its tokens on, every run with the same weight. N_opt, D_opt and "
        f"their exponents are the surface's minimum at each C.{without} Intervals: {told}."
    ]


def _loss_text(settings: FitSettings) -> str:
    line = "L = beta C^alpha is a line in log-log, by ordinary least squares, through all points after warm-up"
    if settings.optimum != "crossings":
        return f"{line}."
    return (
        f"{line} at which a size next to the optimal one has a curve. What a point loses because its size is not the "
        "optimal one (known from the crossings) is subtracted first. Where N_opt is not identified, the line goes "
        "through all points as they are."
    )


def _crossings_text(settings: FitSettings) -> str:
    role = "N_opt and D_opt" if settings.optimum == "crossings" else "The second pair of laws"
    return (
        f"{role}: sizes less than {settings.near_sizes:g} times apart are one, with the lowest loss among them at each "
        "compute. The difference of two neighbouring sizes' curves is fitted with a parabola within a factor of 3.5 in "
        "compute around its zero, the crossing. Beyond the compute that both curves cover, its tangent is used, up to "
        "a factor of 2. Generalised least squares finds the line of log C on log N at which these differences are "
        "smallest in units of the seed noise; neighbouring differences share a curve and are correlated. The inverse "
        "of that line is the law. Intervals are Fieller's, with Student's t for the degrees of freedom of the noise. "
        "With fewer than three crossings, or where an interval has no upper end, the law is not identified."
    )


def _points_text(settings: FitSettings) -> str:
    role = "The second pair of laws" if settings.optimum == "crossings" else "N_opt and D_opt"
    if settings.optimum == "hull":
        return (
            f"{role}: ordinary least squares through the vertices of the lower convex hull of log loss over log "
            "compute after warm-up, of which three sizes must have some; near sizes are apart there. Their intervals "
            "are percentiles over hulls of curves that seed noise moves."
        )
    which = "the uncensored points" if settings.censor else "all points after warm-up (fit.censor: off)"
    return (
        f"{role}: ordinary least squares through {which} of the envelope, provided that each of three sizes owns two "
        "neighbouring ones. Their intervals are percentiles over the same replicates as those of L."
    )


def _range_text(fits: StudyFits) -> str:
    stated = {one.name: one.range_stated for one in fits.groups}
    if len(set(stated.values())) == 1:
        return "stated in the study file" if all(stated.values()) else "not stated: everything after warm-up"
    given = ", ".join(name_of(arch) for arch, is_stated in stated.items() if is_stated)
    return f"stated in the study file for {given}; for the others everything after warm-up"


def _noise_text(fits: StudyFits) -> str:
    noise = fits.seed_noise
    if noise is None:
        return ""
    measured = ", ".join(f"{name_of(one.arch)} {one.size} ({one.n_seeds} seeds: {one.s:.2%})" for one in noise.groups)
    return (
        f" The seed noise was measured on {measured}. {_pooled_text(noise)} It is assumed to hold for every size. "
        "Each replicate draws the variance of the noise from its scaled inverse chi-square distribution, shifts the "
        "whole curve of every size by an independent normal draw in log loss, extracts the envelope and fits again. "
        "The lowest of several noisy curves lies too low, in the study and once more in its replicates. Their "
        "level of L is therefore centred on the fitted level less its simulated bias. Two things are not modelled: "
        "noise along a curve (for L and for the points of the envelope), and that runs of one seed read the same "
        "batches."
    )


def _pooled_text(noise: SeedNoise) -> str:
    parts = [[name_of(arch) for arch in part.archs] for part in noise.parts]
    if len(parts) < 2:
        found = "" if len(parts[0]) < 2 else ": here it tells none apart, and one noise holds for all of them"
    else:
        found = f": here it tells {len(parts)} parts apart: {'; '.join(map(listed, parts))}"
    return (
        "It is pooled over architectures that a test does not tell apart in it (likelihood ratio of their variances)"
        f"{found}. An architecture without seeds takes that of all."
    )


def baseline_text(baseline: dict[str, Any], unit: str) -> str:
    """unit: of losses (data.units)."""
    return (
        f"Dashed reference line: a bigram model with interpolated absolute discounting, counted on "
        f"{baseline['train_tokens']:,} training tokens. Its loss is {baseline['loss']:.4f} {unit} "
        f"({baseline['bits_per_byte']:.4f} bits/byte) on the same {baseline['n_tokens_scored']:,} held-out tokens that "
        f"the checkpoints are evaluated on."
    )
