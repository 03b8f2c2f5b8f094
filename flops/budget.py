"""What a training budget buys by a scaling law, and how far the law can be trusted there. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from arch.errors import InputError

from .laws import PARTS, Laws

TOLERANCE = 0.02  # of the compute identity: r(C) then drifts by less than 5% a decade
SLACK = 1.01  # a compute this near to an end of the range is still in it
FAR = 10.0  # times beyond its range a law is a guess, and no interval of a fit covers that
MOST_BEYOND = 100.0  # beyond this `flops budget` needs --extrapolate


def _is_of(group: str, archs: Sequence[str]) -> bool:
    """Whether a group of laws is of one of `archs`: a study with axes has one for each of an architecture's points,
    `llama, context_length=2048`."""
    return group in archs or group.partition(", ")[0] in archs


def budget(laws: Laws, c: float, batch_tokens: float | None = None, archs: Sequence[str] = ()) -> list[dict[str, Any]]:
    """One row an architecture (and point of a study's axes) for `c` FLOP: approach (of the fit), n_opt, d_opt (tokens),
    loss (nats/token), and of these three an interval over seed noise ([low, high]); steps (D_opt over `batch_tokens`),
    tokens_per_param, ratio_6nd (6 N_opt D_opt / C), a_plus_b and ratio_per_decade (what a tenfold C does to the ratio),
    identity_error and cost_growth (see ArchLaws), in_range (C was fitted), beyond and loss_beyond (how many times C
    lies outside the range of N_opt and D_opt, and of the loss; 1 inside), loss_misses (a pure power law does not
    describe L(C)) and loss_off_line (by what share of the loss it misses its own points, root mean square). None where
    a law was not identified.

    Raises InputError for an architecture that the laws do not have.
    """
    for arch in archs:
        if not any(_is_of(group, (arch,)) for group in laws.archs):
            raise InputError(f"--arch: no law for {arch!r} in {laws.source}, which has {', '.join(laws.archs)}")
    batch, rows = batch_tokens or laws.batch_tokens, []
    for arch, law in laws.archs.items():
        if archs and not _is_of(arch, archs):
            continue
        n = law.n_opt(c) if law.n_opt else None
        d = law.d_opt(c) if law.d_opt else None
        rows.append(
            {
                "arch": arch,
                "approach": law.approach,
                "n_opt": n,
                "d_opt": d,
                "loss": law.loss(c) if law.loss else None,
                **{f"{part}_interval": law.bands[part].at(c) if part in law.bands else None for part in PARTS},
                "steps": max(1.0, d / batch) if batch and d is not None else None,
                "tokens_per_param": d / n if n is not None and d is not None else None,
                "ratio_6nd": 6 * n * d / c if n is not None and d is not None else None,
                "a_plus_b": law.a_plus_b,
                "ratio_per_decade": 10 ** (law.a_plus_b - 1) if law.a_plus_b is not None else None,
                "identity_error": law.identity_error,
                "cost_growth": law.cost_growth,
                "c_min": law.range[0] if law.range else None,
                "c_max": law.range[1] if law.range else None,
                "in_range": _beyond(law.range, c) == 1 if law.range else None,
                "beyond": _beyond(law.range, c) if law.range else None,
                "loss_misses": law.curved if law.loss else None,
                "loss_off_line": law.off_line if law.loss else None,
                "loss_beyond": _beyond(law.loss_range, c) if law.loss_range else None,
            }
        )
    return rows


def _missed(row: dict[str, Any]) -> str:
    off = row["loss_off_line"]
    return str(row["arch"]) if off is None else f"{row['arch']} (off by about {off:.1%} inside)"


def _beyond(span: tuple[float, float], c: float) -> float:
    """How many times `c` lies outside of `span` [FLOP]; 1 inside."""
    times = max(span[0] / c, c / span[1])
    return times if times > SLACK else 1.0


def refuse_far(laws: Laws, c: float, rows: Sequence[dict[str, Any]]) -> None:
    """Raise InputError where `c` FLOP lies more than MOST_BEYOND times outside of what a law was fitted to."""
    far = [row for row in rows if max(row["beyond"] or 1.0, row["loss_beyond"] or 1.0) > MOST_BEYOND]
    if far:
        cases = [f"{row['arch']} {row['c_min']:.3g} to {row['c_max']:.3g}" for row in far]
        raise InputError(
            f"--compute {c:.4g} FLOP lies more than {MOST_BEYOND:.0f} times outside of what {laws.source} was fitted "
            f"to ({', '.join(cases)}): train larger runs, or give --extrapolate to see what the laws would say"
        )


def warnings(laws: Laws, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Reasons not to trust `rows`, one a line."""
    reasons = [
        f"{row['arch']}: the study does not believe its law ({row['approach']}): {laws.archs[row['arch']].doubts}"
        for row in rows
        if laws.archs[row["arch"]].doubts
    ]
    broken = [row for row in rows if row["identity_error"] is not None and abs(row["identity_error"]) > TOLERANCE]
    if broken:
        cases = [
            f"{row['arch']} (a + b = {row['a_plus_b']:.3f}, 6ND/C = {row['ratio_6nd']:.3g}, "
            f"x {row['ratio_per_decade']:.3g} a decade)"
            for row in broken
        ]
        reasons.append(
            f"the exponents of the law break the compute identity, so N_opt and D_opt do not spend this C: "
            f"{', '.join(cases)}"
        )
    outside = [f"{row['arch']} ({row['c_min']:.3g} to {row['c_max']:.3g})" for row in rows if row["in_range"] is False]
    if outside:
        reasons.append(
            f"C is outside of the fitted range in FLOP, the laws are extrapolated: {', '.join(outside)}; no interval "
            f"of a fit covers the error of this"
        )
    curved = [row for row in rows if row["loss_misses"]]
    if curved:
        missed = ", ".join(_missed(row) for row in curved)
        reasons.append(
            f"a pure power law does not describe L(C) of {missed}: its loss is wrong inside of the fitted range too, "
            f"and more so outside"
        )
    long = []
    for row in rows:
        most = laws.archs[row["arch"]].most_tokens
        if row["in_range"] and most and row["d_opt"] and row["d_opt"] > most:
            long.append(f"{row['arch']} ({row['d_opt']:.3g} of {most:.3g})")
    if long:
        reasons.append(f"D_opt is more tokens than any run that the law was fitted to: {', '.join(long)}")
    for row in rows:
        for part, reason in laws.archs[row["arch"]].reasons.items():
            reasons.append(f"{row['arch']}: {part} is not identified: {reason}")
    return reasons
