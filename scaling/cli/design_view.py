"""What `scaling design` prints, and the first lines of the study file that it writes."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from typing import Any

import typer

from arch.amounts import flop
from arch.tables import text_table, wrapped
from data.units import NATS_A_BYTE
from flops.tables import duration

NO_BETTER = (
    "warning: none of these answers what is asked better than the naive ladder, which is what --write "
    "writes: give more budget, a lower --least-size, or ask for what less can tell"
)


def show(found: Mapping[str, Any]) -> str:
    """The proposals and the naive ladder, and what the columns mean."""
    rows = [(str(i), row) for i, row in enumerate(found["proposals"], 1)]
    rows += [("naive", found["naive"])] if found["naive"] else []
    heads = [
        "",
        "runs",
        "sweep",
        "FLOP",
        "time",
        "identified",
        "half of a",
        "holds",
        "N_opt known",
        "half of L",
        "right",
        "saving",
    ]
    lines = []
    for label, row in rows:
        told = row["summary"]
        right = told["right"] if found["ask"] == "exponent" else told["right_l"]
        lines.append(
            [
                label,
                f"{row['runs']:,}",
                _of_sweep(row),
                flop(row["flops"]),
                duration(row["seconds"]),
                f"{told['identified']:.0%}",
                _three(told["half_a"], "{:.3f}"),
                f"{told['held']:.0%}",
                _three(told["factor_n"], "x {:.2f}"),
                _three(told["half_l"], "{:.2%}"),
                f"{right:.0%}",
                _saving(row),
            ]
        )
    what = {
        "exponent": "a within 0.05 and N_opt within 30% of the truth",
        "loss": "the loss at the target within 0.5% of the truth",
        "compare": "the loss at the target within 0.5% of the truth",
    }[found["ask"]]
    notes = [
        *([NO_BETTER] if not found["better_than_naive"] else []),
        *(f"{label}: {row['words']}" for label, row in rows),
        f"{found['worlds']} worlds (half of the fitted form, half of four others; seed {found['seed']}); prior: "
        f"{'; '.join(found['prior'])}",
        _noises(found),
        f"identified: N_opt and D_opt have intervals and no reason against believing them; half of a, of L: half of "
        f"the interval of N_opt's exponent, of the loss at {flop(found['target_flops'])} FLOP, and N_opt known: the "
        f"factor to an end of its interval there: median (10% to 90% of worlds); holds: how often the interval of a "
        f"holds the truth, of 95% asked for; right: {what}",
        *([f"note: {found['target_note']}"] if found["target_note"] else []),
        f"sizes of {found['least_size']:.3g} parameters or more (--least-size)",
        *(f"left out: {line}" for line in found["skipped"]),
        "saving: how many times its budget the naive ladder would need for the interval, in more seeds",
        f"{_of_rates(found)}; time: on {found['device']}, modelled; designed in {found['design_seconds']:.0f} s",
    ]
    if found["ask"] == "compare":
        apart = found["proposals"][0]["summary"]["tells_apart"]
        notes.insert(
            -1,
            f"1: the errors of two simulated losses at the target, of independent noise, differ by less than "
            f"{apart:.2%} in 9 of 10 pairs: a smaller difference of two architectures is not told apart",
        )
    return "\n".join([text_table(heads, lines), "", *wrapped(notes)])


def _noises(found: Mapping[str, Any]) -> str:
    """Of seeds, and of a point of whole curves."""
    told = (
        f"noise between seeds: {found['seed_noise']:.2%} of the loss ({found['seed_noise_source']}); sizes fall faster "
        f"or slower than the surface by {found['bend']:.1%} an e-fold of tokens ({found['bend_source']})"
    )
    ranges = {(row["point_noise"], row["windows"]) for row in found["proposals"] if row["point_noise"]}
    for (least, most), (few, many) in sorted(ranges)[:1]:
        told += (
            f"; of a point of a curve, whose text is harder or easier: {least:.2g} to {most:.2g} {NATS_A_BYTE}, "
            f"reckoned from {found['text_noise']:.3g} of one token alone ({found['text_noise_source']}) and means over "
            f"{few:,.0f} to {many:,.0f} tokens"
        )
    if found["held_out"] and any(row["curves"] for row in found["proposals"]):
        told += "; curves are held-out losses at checkpoints, all on the same text"
    return told


def _of_rates(found: Mapping[str, Any]) -> str:
    if found["rates"] == "law":
        return "rates follow the law file; what it does not know of them is in the simulation"
    if found["rates"] == "sweep":
        return (
            "sweep: runs that find the learning rates first, within the budget; what their law leaves of wrong rates "
            "is in the simulation, and the naive ladder guesses its rates"
        )
    return "rates are a first guess: sweeps are not in the budget"


def _three(values: list[float], form: str) -> str:
    low, mid, high = (form.format(v) if math.isfinite(v) and v < 1e3 else "none" for v in values)
    return f"{mid} ({low.removeprefix('x ')} to {high.removeprefix('x ')})"


def _of_sweep(row: Mapping[str, Any]) -> str:
    swept = row["sweep"]
    return f"{swept['runs']} of them, {swept['flops'] / row['flops']:.0%} of FLOP" if swept else "-"


def _saving(row: Mapping[str, Any]) -> str:
    value = row.get("saving")
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.1f} times" if math.isfinite(value) else "naive has no interval"


def command_of(context: typer.Context) -> str:
    """The command as it was given, without where its study file and its output go."""
    words = ["scaling", "design"]
    for option in context.command.params:
        value = context.params.get(option.name or "")
        given = context.get_parameter_source(option.name or "")
        if given is None or given.name != "COMMANDLINE" or option.name in ("write", "dry_run", "as_json"):
            continue
        if isinstance(value, bool):
            words.append(option.opts[0] if value else option.secondary_opts[0])
            continue
        for one in value if isinstance(value, (list, tuple)) else [value]:
            words += [option.opts[0], str(one)]
    return shlex.join(words)


def head_of(found: Mapping[str, Any], best: Mapping[str, Any]) -> str:
    told = best["summary"]
    lines = [
        f"{found['command']}",
        f"Written by this, for: {found['ask']} of {', '.join(found['archs'])}, budget {found['budget']:.4g} "
        f"{found['budget_unit']}.",
        f"Proposed: {best['words']}.",
        f"Of {told['studies']} simulated studies {told['identified']:.0%} identify N_opt and D_opt; half of the "
        f"interval of a: {told['half_a'][1]:.3f} (median); {flop(best['flops'])} FLOP exact.",
        *(
            []
            if found["better_than_naive"]
            else ["This is the naive ladder: no proposal was expected to answer better."]
        ),
    ]
    return "".join(f"# {line}\n" for line in lines)
