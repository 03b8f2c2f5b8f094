"""What `scaling design` prints, and the first lines of the study file that it writes."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from typing import Any

import typer

from arch.amounts import flop
from arch.tables import text_table, wrapped
from flops.tables import duration

NO_BETTER = (
    "warning: no proposal answers the question better than the naive ladder, and --write writes that ladder: "
    "give more budget, a lower --least-size, or another --ask"
)


def show(result: Mapping[str, Any]) -> str:
    """What the columns mean, the proposals and the naive ladder, and what the best of them is expected to answer."""
    rows = [(str(i), row) for i, row in enumerate(result["proposals"], 1)]
    rows += [("naive", result["naive"])] if result["naive"] else []
    heads = [
        "",
        "runs",
        "sweep",
        "FLOP",
        "time",
        "half of a",
        "holds",
        "N_opt known",
        "half of L",
        "right",
    ]
    lines = []
    for label, row in rows:
        summary = row["summary"]
        right = summary["right"] if result["ask"] == "exponent" else summary["right_l"]
        lines.append(
            [
                label,
                f"{row['runs']:,}",
                _of_sweep(row),
                flop(row["flops"]),
                duration(row["seconds"]),
                _three(summary["half_a"], "{:.3f}"),
                f"{summary['held']:.0%}",
                _three(summary["factor_n"], "x {:.2f}"),
                _three(summary["half_l"], "{:.2%}"),
                f"{right:.0%}",
            ]
        )
    what = {
        "exponent": "a within 0.05 and N_opt within 30% of the truth",
        "loss": "the loss at the target within 0.5% of the truth",
        "compare": "the loss at the target within 0.5% of the truth",
    }[result["ask"]]
    notes = [
        f"{result['worlds']} worlds (half of the fitted form, half of four others; seed {result['seed']}); prior: "
        f"{'; '.join(result['prior'])}",
        f"noise between seeds: {result['seed_noise']:.2%} of the loss ({result['seed_noise_source']}); sizes fall "
        f"faster or slower than the surface by {result['bend']:.1%} an e-fold of tokens (assumed)"
        + (", and their points by their text" if result["text_noise"] else ""),
        f"half of a, of L: half of the interval of N_opt's exponent, of the loss at {flop(result['target_flops'])} "
        f"FLOP, and N_opt known: the factor to an end of its interval there: median (10% to 90% of worlds); holds: how "
        f"often the interval of a contains the truth (nominal level: 95%); right: {what}",
        f"sizes of {result['least_size']:.3g} parameters or more (--least-size)",
        *(f"left out: {line}" for line in result["skipped"]),
        f"{_of_rates(result)}; time: on {result['device']}, modelled; designed in {result['design_seconds']:.0f} s",
    ]
    if result["ask"] == "compare":
        detectable = result["proposals"][0]["summary"]["tells_apart"]
        notes.insert(
            -1,
            f"1: the errors of two simulated losses at the target, of independent noise, differ by less than "
            f"{detectable:.2%} in 9 of 10 pairs: a smaller difference of two architectures cannot be detected",
        )
    answers = [f"{label}: {row['words']}" for label, row in rows] + [_answer(result)]
    return "\n".join([*wrapped(notes), "", text_table(heads, lines), "", *wrapped(answers)])


def _answer(result: Mapping[str, Any]) -> str:
    """A sentence on the best proposal."""
    if not result["better_than_naive"]:
        return NO_BETTER
    summary = result["proposals"][0]["summary"]
    if result["ask"] == "exponent":
        what, half, right = "the exponent of N_opt", _three(summary["half_a"], "{:.3f}"), summary["right"]
    else:
        what = f"the loss at {flop(result['target_flops'])} FLOP"
        half, right = _three(summary["half_l"], "{:.2%}"), summary["right_l"]
    known = "will most likely not know" if half.startswith("none") else "is expected to know"
    within = "" if half.startswith("none") else f" to ±{half.partition(' ')[0]} (median)"
    return f"proposal 1 {known} {what}{within}; it is right in {right:.0%} of its simulated studies"


def _of_rates(result: Mapping[str, Any]) -> str:
    if result["rates"] == "law":
        return "rates follow the law file; what it does not know of them is in the simulation"
    if result["rates"] == "sweep":
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
        for item in value if isinstance(value, (list, tuple)) else [value]:
            words += [option.opts[0], str(item)]
    return shlex.join(words)


def head_of(result: Mapping[str, Any], best: Mapping[str, Any]) -> str:
    summary = best["summary"]
    lines = [
        f"{result['command']}",
        f"Written by this, for: {result['ask']} of {', '.join(result['archs'])}, budget {result['budget']:.4g} "
        f"{result['budget_unit']}.",
        f"Proposed: {best['words']}.",
        f"In {summary['studies']} simulated studies half of the interval of a is {summary['half_a'][1]:.3f} (median); "
        f"{flop(best['flops'])} FLOP exact.",
        *(
            []
            if result["better_than_naive"]
            else ["This is the naive ladder: no proposal was expected to answer better."]
        ),
    ]
    return "".join(f"# {line}\n" for line in lines)
