"""Where a quantity stands in what commands print: the only place that knows the form of their JSON.

laws.csv keeps its form when that of fits.json changes: then these functions change and the file does not. Each of them
yields the readings of a kind of JSON.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from analysis.fits.fit import Estimate
from analysis.fits.pairwise import BETTER, WORSE, Compared, Comparison, Pair

Json = dict[str, Any]
REPORT_TABLES = ("losses", "approaches", "comparison")


class Reading(NamedTuple):
    """One number with its interval; or a text as `reason`: a verdict, or why there is no number."""

    approach: str
    group: str
    quantity: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str = ""


def results(answer: Json) -> Iterator[Reading]:
    """Of `scaling fit table` and `scaling fit runs`."""
    yield from _laws(answer["results"])
    yield from _refused(answer["not_fitted"])
    yield from _comparisons(answer["comparisons"] or [])


def stage(fits: Json) -> Iterator[Reading]:
    """Of `scaling fit study`: fits.json."""
    known = {fit["group"]: fit for fit in fits["fits"] if fit["approach"] == "envelope"}
    for group in fits["groups"]:
        yield from _envelope(group, known.get(group["name"]))
    yield from _laws(fit for fit in fits["fits"] if fit["verdict"])
    yield from _refused(fits["not_fitted"])
    yield from _comparisons(fits["comparisons"])
    seeds = fits["seed_noise"] or {}
    yield Reading("noise", "", "s between seeds, log loss", seeds.get("s"))
    yield Reading("noise", "", "df between seeds", seeds.get("df"))
    for lowest in fits["verdicts"]:
        yield from _lowest(lowest)
    yield from _variants(fits["variants"])
    yield from _tasks(fits["downstream"] or {"tasks": []})


def predictions(answer: Json) -> Iterator[Reading]:
    """Of `scaling predict`: each round's losses, and what was measured."""
    for forecast in (answer, *answer.get("later", ())):
        name = f"forecast, round {forecast.get('round', 1)}"
        for row in forecast["runs"]:
            yield _of(name, row["run_id"], "loss", row["loss"], row["interval"], row["reason"] or "")
            for key in ("measured", "error"):
                yield Reading(name, row["run_id"], key, row[key])
            if row["held"] is not None:
                yield Reading(name, row["run_id"], "held", float(row["held"]))


def rate_law(answer: Json) -> Iterator[Reading]:
    """Of `scaling sweep`: the law file that it wrote."""
    law = json.loads(Path(answer["law"]).read_text(encoding="utf-8"))
    for arch, noise in law["noise"].items():
        yield Reading("rates", arch, "sd of log loss", noise["sd"])
        yield Reading("rates", arch, "df of log loss", noise["dof"])
    for arch, of_arch in law["laws"].items():
        names = ["log rate at the centre", *(f"exponent of {term}" for term in of_arch["terms"])]
        for i, (name, value) in enumerate(zip(names, of_arch["coefficients"], strict=True)):
            half = of_arch["quantile"] * of_arch["covariance"][i][i] ** 0.5
            yield Reading("rates", arch, name, value, value - half, value + half)
        for term, value in of_arch["centre"].items():
            yield Reading("rates", arch, f"centre of {term}", value)
        yield Reading("rates", arch, "curvature", of_arch["curvature"]["at"])
        yield Reading("rates", arch, "p of misfit", of_arch["misfit"] and of_arch["misfit"]["p"])
    for arch, reason in law["without_law"].items():
        yield Reading("rates", arch, "law", reason=reason)
    for cell in law["cells"]:
        yield Reading("rates", f"{cell['arch']} {cell['size']} {cell['n_tokens']}", "best rate", cell["best_rate"])


def trial(answer: Json) -> Iterator[Reading]:
    """Of `scaling try`: try.json."""
    for row in answer["differences"]:
        yield Reading("try", row["size"], "loss over the baseline's", row["value"], row["low"], row["high"])
        for key in ("se_text", "se_seeds", "df"):
            yield Reading("try", row["size"], key, row[key])
        yield Reading("try", row["size"], "verdict", reason=row["verdict"])
    for row in answer["compute"] or ():
        gain = [end and 1 / end for end in (row["ratio"], row["high"], row["low"])]
        yield Reading("try", f"{row['c']:g} FLOP", "compute for the same loss", *gain)
    for row in answer["losses"] or ():
        yield Reading("try", f"{row['c']:g} FLOP", "ratio of losses", row["ratio"], row["low"], row["high"])
    yield Reading("try", "", "verdict", reason=f"{answer['verdict']['word']}: {answer['verdict']['reason']}")


def design(answer: Json) -> Iterator[Reading]:
    """Of `scaling design`: what the proposals and the ladder without a plan are expected to tell."""
    proposals = {f"proposal {i}": proposal for i, proposal in enumerate(answer["proposals"])}
    for name, proposal in (proposals | {"naive": answer["naive"]}).items():
        for i, (size, tokens) in enumerate(zip(proposal["sizes"], proposal["tokens"], strict=True)):
            yield Reading("design", name, f"size {i}", size)
            yield Reading("design", name, f"tokens of size {i}", tokens)
            yield Reading("design", name, f"seeds of size {i}", proposal["seeds"][i])
        yield Reading("design", name, "runs", proposal["runs"])
        yield Reading("design", name, "FLOP", proposal["flops"])
        for key, value in proposal["summary"].items():
            if isinstance(value, list):
                low, middle, high = value
                yield Reading("design", name, key, middle, low, high)
            else:
                yield Reading("design", name, key, value)


def report(answer: Json) -> Iterator[Reading]:
    """Of the report's tables as it gives them to download: a number a cell, named by the row's first cells."""
    folder = Path(answer["report"]).parent / "tables"
    for path in (folder / f"{name}.csv" for name in REPORT_TABLES):
        if not path.exists():  # that of losses: no envelope was fitted
            continue
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                named = [row.pop(key) for key in ("architecture", "approach", "pair") if key in row]
                for key, cell in row.items():
                    try:
                        yield Reading(f"report, {path.stem}", ", ".join(named), key, float(cell))
                    except ValueError:
                        yield Reading(f"report, {path.stem}", ", ".join(named), key, reason=cell)


def nothing(answer: Json) -> Iterator[Reading]:
    """Of a command that is given for what it writes."""
    return iter(())


def _of(
    approach: str, group: str, quantity: str, value: float | None, interval: Sequence[float] | None, reason: str = ""
) -> Reading:
    return Reading(approach, group, quantity, value, *(interval or (None, None)), reason)


def _text(verdict: Json | None) -> str:
    return "" if verdict is None else ": ".join([verdict["believe"], "; ".join(verdict["reasons"])])


def _estimate(approach: str, group: str, quantity: str, estimate: Json, reason: str = "") -> Reading:
    return Reading(approach, group, quantity, estimate["value"], estimate["low"], estimate["high"], reason)


def _law(laws: Sequence[Json], quantity: str) -> Json:
    return next(law for law in laws if law["quantity"] == quantity)


def _parameters(fit: Json) -> Iterator[tuple[str, Json, str]]:
    """(name, estimate, reason) of all that was estimated, in the order of laws.csv; the reason where it stands first:
    what follows from a parameter of the surface has that one's."""
    surface = fit["parametric"]["parameters"] if fit["parametric"] else {}
    laws = {name: _law(fit["laws"], name) for name in ("N_opt", "D_opt", "L_opt")}
    result = {name: (estimate, estimate["reason"]) for name, estimate in surface.items()}
    known = {reason for _, reason in result.values()}
    for name, law in (("a", "N_opt"), ("b", "D_opt"), ("L_exponent", "L_opt")):
        estimate = laws[law]["exponent"]
        reason = estimate["reason"] if estimate["value"] is not None and fit["approach"] == "parametric" else ""
        result[name] = estimate, "" if reason in known else reason
    if "E" not in result:
        result["E"] = laws["L_opt"]["floor"], ""
    middle = fit["middle"] or {}
    for name, key in (("N_opt", "n_params"), ("D_opt", "n_tokens"), ("L_opt", "loss")):
        if middle:
            result[name] = middle[key], ""
    for name, (estimate, reason) in result.items():
        if estimate["value"] is not None:
            yield name, estimate, reason
    for name, key in (("N_opt", "n_opt"), ("D_opt", "d_opt"), ("L_opt", "loss")):
        if laws[name]["reason"]:
            yield key, {"value": None, "low": None, "high": None}, laws[name]["reason"]


def _laws(laws: Iterable[Json]) -> Iterator[Reading]:
    for fit in laws:
        where = (fit["approach"], fit["group"])
        for name, estimate, reason in _parameters(fit):
            yield _estimate(*where, name, estimate, reason)
        for optimum in fit["optima"]:
            for name, key in (("N", "n_params"), ("D", "n_tokens"), ("L", "loss")):
                yield _estimate(*where, f"{name}_opt at {optimum['flops']:g} FLOP", optimum[key])
        for row in fit["predictions"]:
            yield _estimate(*where, f"loss of N = {row['n_params']:g}, D = {row['n_tokens']:g}", row["loss"])
        part = fit["parametric"] or {}
        if tilted := part.get("over_training"):
            for name in ("a", "b", "eta"):
                yield _estimate(*where, f"over-training {name}", tilted[name])
            yield Reading(*where, "p of one exponent", part["p_tied"])
        for noise in part.get("noise", ()):
            yield Reading(*where, f"noise of {noise['of']}", noise["s"])
        yield Reading(*where, "n_points", fit["n_points"])
        yield Reading(*where, "verdict", reason=_text(fit["verdict"]))


def _refused(rows: Sequence[Json]) -> Iterator[Reading]:
    for row in rows:
        yield Reading(row["approach"], row["group"], "all", reason=row["reason"])


def _envelope(group: Json, fit: Json | None) -> Iterator[Reading]:
    arch = group["name"]
    if fit is None:
        if group["reason"]:  # else not_fitted says why
            yield Reading("envelope", arch, "all", reason=group["reason"])
        return
    for name in ("L_opt", "N_opt", "D_opt"):
        yield from _power_law("envelope", arch, _law(fit["laws"], name))
    for row in fit["envelope"]["pairs"]:
        yield Reading("envelope", arch, f"C where {' and '.join(row['sizes'])} cross", row["c"])


def _power_law(approach: str, group: str, law: Json) -> Iterator[Reading]:
    name = {"L_opt": "L"}.get(law["quantity"], law["quantity"])
    for key, named in (("exponent", "exponent"), ("coefficient", "coef")):
        yield _estimate(approach, group, f"{named} of {name}(C)", law[key], law["reason"])


def _comparisons(comparisons: Sequence[Json]) -> Iterator[Reading]:
    for stored in comparisons:
        comparison = Compared.from_dict(stored)
        for name, view in list(comparison.views.items())[:1]:  # the study's own counts; the verdicts below are of all
            if view.reason:
                yield Reading("comparison", name, "all", reason=view.reason)
                continue
            for row in view.compute:
                who, gain = f"{row.other} against {row.reference}, {name}", row.against(row.other).ratio
                ends = gain.interval or (None, None)
                yield Reading("comparison", who, f"gain at {row.at:.6g} FLOP", gain.value, *ends)
        pairs: dict[frozenset[str], tuple[str, str]] = {}
        for view in comparison.views.values():
            for pair in view.pairs:
                pairs.setdefault(frozenset(pair), pair)
        for other, reference in pairs.values():
            for beyond in (False, True):
                who = f"{other} against {reference}{', beyond' if beyond else ''}"
                counts = {name: view.at(other, reference, beyond) for name, view in comparison.views.items()}
                ahead = {WORSE: reference, BETTER: other}.get(Pair(other, reference, compute=counts).by_count)
                yield Reading("comparison", who, "ahead", reason=ahead or "not told apart")


def _lowest(lowest: Json) -> Iterator[Reading]:
    """Losses at the largest compute that all architectures have."""
    if lowest["reason"]:
        yield Reading("lowest loss", lowest["at"], "all", reason=lowest["reason"])
        return
    at = f"at {lowest['c']:.6g} FLOP"
    for arch, row in lowest["archs"].items():
        yield _estimate("lowest loss", arch, f"loss {at}", row["loss"])
        ratio = (row["against_best"] or {"ratio": {"value": 1.0, "low": None, "high": None}})["ratio"]
        logs = [end and math.log(end) for end in (ratio["value"], ratio["low"], ratio["high"])]
        yield Reading("lowest loss", arch, f"above the lowest {at}", *logs)
    yield Reading("lowest loss", lowest["at"], "best", reason=lowest["best"])


def _variants(variants: Json) -> Iterator[Reading]:
    for family in variants["families"]:
        for row in family["variants"]:
            who = f"{family['arch']} {family['at']} {row['name']}"
            yield Reading("variants", who, "loss", row["loss"])
            against = row["against_first"]
            more = Comparison.from_dict(against).more if against else Estimate(0.0)
            yield Reading("variants", who, "more than the first", more.value, more.low, more.high)
    if variants["s"] is not None:
        yield Reading("variants", "", "s of log loss", variants["s"])


def _tasks(scores: Json) -> Iterator[Reading]:
    for task in scores["tasks"]:
        name = f"task {task['task']}"
        for law in task["laws"]:
            arch = law["arch"]
            yield Reading(name, arch, "t of the trend", law["t"], reason=law["withheld"])
            for key, estimate in law["parameters"].items():
                yield _estimate(name, arch, f"{key} of the link to loss", estimate)
            if law["verdict"]:
                yield Reading(name, arch, "verdict on the link to loss", reason=_text(law["verdict"]))
            for prediction in law["predictions"]:
                yield _estimate(
                    name,
                    arch,
                    f"score at {prediction['flops']:.6g} FLOP",
                    prediction["score"],
                    prediction["score"]["reason"],
                )
