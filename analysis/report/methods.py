"""How the fits were made, in paragraphs: the report's section on methods."""

from __future__ import annotations

from typing import Any

from analysis.figures.palette import name_of
from analysis.report.notes import interval_text, method_notes


def convention_text(fits: dict[str, Any]) -> str:
    named = fits["conventions"]
    return f"training FLOP, convention '{named['C']}'; N: {named['N']}; D: training tokens"


def methods(fits: dict[str, Any]) -> list[str]:
    settings = fits["settings"]
    return [
        f"C is {convention_text(fits)}. Loss: {fits['conventions']['L']}; the seeds of a size are averaged in log "
        "loss.",
        f"At each of {settings['grid_points']} log-spaced C in the range ({_range_text(fits)}) the envelope is the "
        f"lowest loss among the sizes whose curve covers C. {_loss_text(settings)} The points of the grid are not "
        "independent: R^2 says how straight a line is, not how well known.",
        f"{_crossings_text(settings)} {_points_text(settings)}",
        f"{interval_text(fits)}.{_noise_text(fits)} No bootstrap over runs is claimed.",
        *method_notes(fits)[1:],
    ]


def _loss_text(settings: dict[str, Any]) -> str:
    line = "L = beta C^alpha is an ordinary least-squares line in log-log through all covered points after warm-up"
    if settings["optimum"] == "envelope":
        return f"{line}."
    return (
        f"{line}, less what each point's size loses by not being the optimal one (from the crossings), as long as a "
        "size next to the optimal one has a curve there; where N_opt is not identified, through all "
        "points as they are."
    )


def _crossings_text(settings: dict[str, Any]) -> str:
    role = "N_opt and D_opt" if settings["optimum"] == "crossings" else "The laws beside them"
    return (
        f"{role}: the difference of two neighbouring sizes' curves is read as a parabola within a factor of 3.5 of its "
        "zero (beyond what is compared by its tangent, up to a factor of 2); generalised least squares finds the line "
        "of log C on log N at whose points the differences are smallest, in units of the seed noise, two of which "
        "share a curve; its inverse is the law. Intervals are Fieller's, with Student's t of the noise's degrees of "
        "freedom. Fewer than three crossings, or an interval without an upper end: not identified."
    )


def _points_text(settings: dict[str, Any]) -> str:
    role = "The laws beside them" if settings["optimum"] == "crossings" else "N_opt and D_opt"
    which = "the uncensored points" if settings["censor"] else "all covered points after warm-up (fit.censor: off)"
    return (
        f"{role}: ordinary least squares through {which} of the envelope, where three sizes own two neighbouring ones; "
        "percentile intervals of the same replicates as L."
    )


def _range_text(fits: dict[str, Any]) -> str:
    stated = {arch: one["range_stated"] for arch, one in fits["archs"].items()}
    if len(set(stated.values())) == 1:
        return "stated in the study file" if all(stated.values()) else "not stated: all that lies after warm-up"
    given = ", ".join(name_of(arch) for arch, is_stated in stated.items() if is_stated)
    return f"stated in the study file for {given}; for the others all that lies after warm-up"


def _noise_text(fits: dict[str, Any]) -> str:
    noise = fits["interval"]["seed_noise"]
    if noise is None:
        return ""
    measured = ", ".join(
        f"{name_of(g['arch'])} {g['size']} ({g['n_seeds']} seeds: {g['s']:.2%})" for g in noise["groups"]
    )
    return (
        f" Measured on {measured}; pooled and taken to hold at every size and architecture. Each replicate draws the "
        "noise's variance from its scaled inverse chi-square, moves every size's curve as a whole by an independent "
        "normal draw in log loss, extracts the envelope and fits again. The lowest of noisy curves "
        "lies too low, in the study and once more in its replicates: their level of L is put about the fitted level "
        "less its simulated bias, and varies as this difference does. For L and the envelope's points noise along a "
        "curve is not modelled; that runs of one seed read the same batches is nowhere."
    )


def baseline_text(baseline: dict[str, Any]) -> str:
    return (
        f"Reference line: a bigram model with interpolated absolute discounting, counted on "
        f"{baseline['train_tokens']:,} training tokens, has {baseline['loss']:.4f} nats/token "
        f"({baseline['bits_per_byte']:.4f} bits/byte) on the {baseline['n_tokens_scored']:,} held-out tokens that the "
        f"checkpoints are scored on."
    )
