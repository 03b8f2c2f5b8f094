"""Predictions of larger runs from smaller ones, beside other people's: fit below a cut in compute, predict above it.

python -m benchmarks.extrapolation ../shared/data --python PYTHON --json table.json

DATA is the folder of the public tables (tables/*.csv, chinchilla/svg_extracted_data.csv); tables of your own follow by
--table, read as `scaling fit` reads them, with --columns and --group. PYTHON is one that has the packages
(`chinchilla`, `simple-scaling-laws`); a package that it lacks is shown as absent. A unit is a table, a group, a cut and
a reach (3, 10 or 30 times the largest compute below the cut); its error is the root mean square over the runs there.
"lowest" are runs with the lowest loss at their compute, which every method predicts; "runs" are all whose tokens a
parameter were fitted. With --constants the constants of the rule are chosen anew, each table's without that table.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from analysis.fits import rehearsal
from analysis.fits.baselines import LAST_SLOPE, baselines
from analysis.fits.cost import cost_of
from analysis.fits.forms import OUTER_EXPONENT, OVER_TRAINING, PLAIN
from analysis.fits.isoflop import fit_isoflop
from analysis.fits.parametric import fit_parametric
from analysis.fits.points import CURVES, Points
from analysis.fits.rehearsal import LEVEL, Rule
from analysis.fits.solver import HUBER, LEAST_SQUARES
from analysis.fits.surface import PARAMS, Surface
from analysis.fits.tables import read_points
from analysis.fits.tables.columns import parse_columns
from arch.arguments import Parser, at_least_one, run
from arch.errors import InputError
from benchmarks.fits import HIGHEST, peers

EACH = {"columns": {"run": ""}}  # a row is a run
PUBLIC: dict[str, dict[str, Any]] = {
    "tables/porian_owt2.csv": EACH | {"group": "variant"},
    "tables/llama3_isoflop.csv": EACH,
    "tables/marin_dclm.csv": EACH,
    "tables/gemstones_cooldown.csv": EACH,
    "tables/gadre104.csv": {
        "columns": {"run": "", "n_params": "params", "n_tokens": "tokens", "loss": "loss_c4_val"},
        "group": "train_set",
    },
    "chinchilla/svg_extracted_data.csv": EACH | {"drop_highest_loss": HIGHEST},
}
REACHES = {3: (rehearsal.NEAREST, 5.5), 10: (5.5, 17.0), 30: (17.0, 60.0)}
LOWEST, RUNS = "lowest", "runs"
REPLICATES = 199  # of the raw surface's interval
EXPONENTS = np.geomspace(0.01, 1.0, 300)  # of E + A C^-g
EXPECTED = ((0.1, 0.1), (0.1, 0.15), (0.1, 0.3), (0.12, 0.15), (0.08, 0.15))
LOSSES = [Rule(near, nearest, exponent) for near in (0.03, 0.05) for nearest in (0.01, 0.03) for exponent in EXPECTED]
POWERS = (0.0, 1.0, 2.0, 3.0)
OURS = "ours: forecast"
Predicted = tuple[np.ndarray, np.ndarray]  # losses [m] (nan: none), half-widths of their intervals in logarithms
Method = Callable[[Points, Points], Predicted]


@dataclass(frozen=True)
class Unit:
    """What a method missed of the runs at a reach above a cut: root mean square and mean of the log errors; of those
    with an interval: their number, error, half-width, error over half-width (root mean squares), share held, and score
    (Gneiting and Raftery 2007)."""

    method: str
    table: str
    group: str
    cut: float
    reach: int
    target: str
    n: int
    error: float
    bias: float
    n_intervals: int = 0
    error_of_known: float = math.nan
    half_width: float = math.nan
    in_half_widths: float = math.nan
    held: float = math.nan
    score: float = math.nan


def lowest_so_far(points: Points) -> np.ndarray:
    """[n]: whether no run of at most 5% more compute has a lower loss."""
    rivals = points.flops <= points.flops[:, None] * rehearsal.ALSO_AT
    return np.asarray(points.loss <= np.where(rivals, points.loss, np.inf).min(1))


def _none(loss: np.ndarray) -> Predicted:
    return loss, np.full(len(loss), math.nan)


def forecast(below: Points, above: Points, rule: Rule = rehearsal.RULE) -> Predicted:
    """The near-frontier surface with its rehearsed interval."""
    return _losses_of(rehearsal.forecast(below, rule=rule), above)


def _losses_of(forecast: rehearsal.Forecast, above: Points) -> Predicted:
    predicted = [forecast.predict(n, d) for n, d in zip(above.n_params, above.n_tokens, strict=True)]
    losses = np.array([prediction.loss.value for prediction in predicted], dtype=float)
    return losses, np.log(np.array([prediction.loss.high for prediction in predicted], dtype=float) / losses)


def surface(objective: str, form: str, n_replicates: int = 0) -> Method:
    """The parametric approach's surface, with its own interval where there are replicates."""

    def predict(below: Points, above: Points) -> Predicted:
        fit = fit_parametric(below, objective=objective, form=form, n_replicates=n_replicates)
        loss = np.asarray(fit.surface.loss(above.n_params, above.n_tokens))
        if fit.draws is None:
            return _none(loss)
        low, high = fit.loss_interval(above.n_params, above.n_tokens, level=LEVEL)
        return loss, np.log(high / low) / 2

    return predict


def isoflop_optimum(below: Points, above: Points) -> Predicted:
    fit = fit_isoflop(below, cost_of(below), n_replicates=2, at=above.flops.tolist())
    return _none(np.array([optimum.loss.value or math.nan for optimum in fit.optima]))


def isoflop_irreducible(below: Points, above: Points) -> Predicted:
    """E + A C^-g through the minima of budgets."""
    fit = fit_isoflop(below, cost_of(below), n_replicates=2)
    minima = fit.isoflop.used if fit.isoflop else ()
    c, loss = (np.array([getattr(minimum, name) for minimum in minima], dtype=float) for name in ("c", "loss"))
    return _none(_irreducible(c, loss, above.flops))


def last_slope(below: Points, above: Points) -> Predicted:
    """The line through the minima of the last two budgets, as forecasts store it."""
    fit = fit_isoflop(below, cost_of(below), n_replicates=2)
    return _none(np.array([baselines(below, fit, c)[LAST_SLOPE] for c in above.flops.tolist()]))


def frontier_irreducible(below: Points, above: Points) -> Predicted:
    """E + A C^-g through the lowest losses."""
    best = below.take(lowest_so_far(below))
    return _none(_irreducible(best.flops, best.loss, above.flops))


def _irreducible(c: np.ndarray, loss: np.ndarray, at: np.ndarray) -> np.ndarray:
    if len(c) < 4:
        raise InputError("E + A C^-g needs four minima")
    middle = math.exp(np.log(c).mean())
    best, result = math.inf, np.full(len(at), math.nan)
    for g in EXPONENTS:
        x = (c / middle) ** -g
        a = max(float(((x - x.mean()) * loss).sum() / ((x - x.mean()) ** 2).sum()), 0.0)
        e = max(float(loss.mean() - a * x.mean()), 0.0)
        a = a if e else float((x * loss).sum() / (x * x).sum())
        square = float((np.log(loss / (e + a * x)) ** 2).sum())
        if square < best:
            best, result = square, e + a * (at / middle) ** -g
    return result


def power_law(below: Points, above: Points) -> Predicted:
    """L = A C^-g through the lowest losses."""
    best = below.take(lowest_so_far(below))
    if len(np.unique(best.flops)) < 2:
        raise InputError("a power law needs two computes")
    line = np.polynomial.Polynomial.fit(np.log(best.flops), np.log(best.loss), 1)
    return _none(np.exp(line(np.log(above.flops))))


def no_change(below: Points, above: Points) -> Predicted:
    """The loss of the largest run: of the lowest one at the most compute."""
    return _none(np.full(len(above), below.loss.min()))


METHODS: dict[str, tuple[Method, bool]] = {  # and whether it predicts a run of any N and D
    OURS: (forecast, True),
    "ours: surface, Huber": (surface(HUBER, PLAIN, REPLICATES), True),
    "ours: surface, least squares": (surface(LEAST_SQUARES, PLAIN), True),
    "ours: over-training form": (surface(HUBER, OVER_TRAINING), True),
    "ours: outer exponent": (surface(HUBER, OUTER_EXPONENT), True),
    "ours: isoFLOP": (isoflop_optimum, False),
    "isoFLOP minima, E + A C^-g": (isoflop_irreducible, False),
    "isoFLOP minima, last slope": (last_slope, False),
    "lowest losses, E + A C^-g": (frontier_irreducible, False),
    "pure power law": (power_law, False),
    "no change": (no_change, False),
}
PACKAGES = ("chinchilla", "simple_scaling_laws", "vpnls")


def tables(data: Path, own: Sequence[str], columns: str, group: str | None) -> dict[tuple[str, str], Points]:
    """Points by table and group. Raises InputError for what cannot be read."""
    wanted = {str(data / name): options for name, options in PUBLIC.items()}
    mine = {"columns": parse_columns(columns)} if columns else {}
    wanted |= {path: mine | ({"group": group} if group else {}) for path in own}
    result: dict[tuple[str, str], Points] = {}
    for path, options in wanted.items():
        reading = read_points(path, options.get("columns"), **{k: v for k, v in options.items() if k != "columns"})
        if reading.several_rows:
            reading = read_points(
                path, options.get("columns"), points=CURVES, **{k: v for k, v in options.items() if k != "columns"}
            )
        result |= {(Path(path).stem, name): points for name, points in reading.groups.items()}
    return result


def splits(points: Points, most: int) -> list[tuple[Points, Points]]:
    """What lies below each of `most` cuts in compute, and the covered runs above it."""
    result = []
    for below in rehearsal.cuts_of(points):
        low, high = points.take(below), points.take(~below)
        if not (rehearsal.is_enough(low) and high.flops.min() >= low.flops.max()):
            continue
        reach = high.flops / low.flops.max()
        fitted = rehearsal.covered(low, np.ones((1, len(low)), dtype=bool), high.n_params, high.n_tokens)[0]
        kept = fitted & (reach >= rehearsal.NEAREST)
        if kept.any():
            result.append((low, high.take(kept)))
    if len(result) > most:
        result = [result[i] for i in np.linspace(0, len(result) - 1, most).round().astype(int)]
    return result


def units(
    method: str, where: tuple[str, str], low: Points, high: Points, predicted: Predicted, targets: dict[str, np.ndarray]
) -> list[Unit]:
    loss, half = predicted
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.log(high.loss / loss)
    reach = high.flops / low.flops.max()
    result = []
    for name, target in targets.items():
        for middle, (least, most) in REACHES.items():
            mine = target & (reach >= least) & (reach < most) & np.isfinite(error)
            if not mine.any():
                continue
            e = error[mine]
            unit = Unit(method, *where, float(low.flops.max()), middle, name, len(e), _rms(e), float(e.mean()))
            if (known := np.isfinite(half[mine])).any():
                e, w = e[known], half[mine][known]
                missed = np.maximum(np.abs(e) - w, 0)
                unit = replace(
                    unit,
                    n_intervals=len(e),
                    error_of_known=_rms(e),
                    half_width=_rms(w),
                    in_half_widths=_rms(e / w),
                    held=float((missed == 0).mean()),
                    score=float((2 * w + 2 / (1 - LEVEL) * missed).mean()),
                )
            result.append(unit)
    return result


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt((values**2).mean()))


def measured(groups: dict[tuple[str, str], Points], most: int, python: str | None) -> tuple[list[Unit], dict[str, str]]:
    """The units of every method, and why a method has none."""
    cases = [(where, *split) for where, points in groups.items() for split in splits(points, most)]
    rows: list[Unit] = []
    absent: dict[str, str] = {}
    for method, (predict, of_runs) in METHODS.items():
        before = len(rows)
        for where, low, high in cases:
            try:
                predicted = predict(low, high)
            except InputError as error:
                absent[method] = str(error)
                continue
            rows += units(method, where, low, high, predicted, _targets(low, high, groups[where], of_runs))
        if len(rows) > before:
            absent.pop(method, None)
    answers = peers(python, [low for _, low, _ in cases], 1) if python else {}
    for package in PACKAGES:
        answer = answers.get(package, "absent" if python else "absent: no --python given")
        if isinstance(answer, str):
            absent[package] = answer
            continue
        for (where, low, high), fit in zip(cases, answer, strict=True):
            if "failed" not in fit and all(math.isfinite(fit["params"][name]) for name in PARAMS):
                loss = np.asarray(
                    Surface(**{name: fit["params"][name] for name in PARAMS}).loss(high.n_params, high.n_tokens)
                )
                rows += units(package, where, low, high, _none(loss), _targets(low, high, groups[where], True))
    return rows, absent


def _targets(low: Points, high: Points, every: Points, of_runs: bool) -> dict[str, np.ndarray]:
    best = set(every.row[lowest_so_far(every)].tolist())
    lowest = np.array([row in best for row in high.row.tolist()], dtype=bool)
    return {LOWEST: lowest} | ({RUNS: np.ones(len(high), dtype=bool)} if of_runs else {})


def median_errors(rows: Sequence[Unit], target: str, method: str) -> dict[str, float]:
    """By table, the median error of a method's units."""
    mine = [row for row in rows if row.target == target and row.method == method]
    return {t: float(np.median([row.error for row in mine if row.table == t])) for t in sorted({o.table for o in mine})}


def geometric(values: Sequence[float]) -> float:
    return math.exp(float(np.mean(np.log(values)))) if values else math.nan


def summary(rows: Sequence[Unit], absent: dict[str, str]) -> list[str]:
    """A line a method: geometric means over tables of median errors, and how intervals held."""
    n_tables = len({row.table for row in rows})
    lines = [
        f"{'':30} {'lowest':>7} {'bias':>7} {'runs':>7} {'bias':>7} {'tables':>6}  intervals of runs ({LEVEL:.0%})"
    ]
    for method in [*METHODS, *PACKAGES]:
        if method in absent:
            lines.append(f"{method:30} {absent[method][:80]}")
            continue
        cells, counts = [], 0
        for target in (LOWEST, RUNS):
            errors = median_errors(rows, target, method)
            counts = max(counts, len(errors))
            bias = [row.bias for row in rows if row.method == method and row.target == target]
            cells += [
                f"{geometric(list(errors.values())):7.2%} {np.median(bias):+7.2%}" if errors else f"{'-':>7} {'-':>7}"
            ]
        known = [row for row in rows if row.method == method and row.target == RUNS and row.n_intervals]
        held = f"  {intervals(known)}" if known else ""
        lines.append(f"{method:30} {cells[0]} {cells[1]} {counts:3}/{n_tables}{held}")
    return lines


def intervals(known: Sequence[Unit]) -> str:
    """How intervals held, in units: a unit holds where its errors are, root mean square, within their half-widths."""
    z = np.array([o.in_half_widths for o in known])
    width, error = (float(np.median([getattr(o, name) for o in known])) for name in ("half_width", "error_of_known"))
    return (
        f"hold {(z <= 1).mean():.0%} of {len(z)}, {(z > 2).sum()} missed by twice, +-{width:.1%} "
        f"({width / error:.1f} errors), score {np.mean([o.score for o in known]):.3f}"
    )


def constants(groups: dict[tuple[str, str], Points], most: int) -> list[str]:
    """Each table by the rule that the other tables choose: of LOSSES the least error, then of POWERS of the number of
    runs the least score of the intervals."""
    cases = [(where, *split) for where, points in groups.items() for split in splits(points, most)]
    names = sorted({where[0] for where in groups})
    fitted = {rule: [rehearsal.forecast(low, rule=rule) for _, low, _ in cases] for rule in LOSSES}

    def of(rule: Rule, losses: Rule) -> list[Unit]:
        rows: list[Unit] = []
        for (where, low, high), forecast in zip(cases, fitted[losses], strict=True):
            predicted = _losses_of(_with(forecast, rule), high)
            rows += units(OURS, where, low, high, predicted, _targets(low, high, groups[where], True))
        return rows

    errors = {rule: [median_errors(of(rule, rule), target, OURS) for target in (LOWEST, RUNS)] for rule in LOSSES}
    chosen, lines = [], []
    for left_out in names:
        others = [name for name in names if name != left_out]
        losses = min(LOSSES, key=lambda rule: _over(others, errors[rule]))
        rules = [replace(losses, by_runs=power) for power in POWERS]
        rows = {rule: of(rule, losses) for rule in rules}
        rule = min(rules, key=lambda rule: _over(others, [_scores(rows[rule])]))
        chosen += [row for row in rows[rule] if row.table == left_out]
        lines.append(f"without {left_out:20} {rule}")
    lowest, runs = (geometric(list(median_errors(chosen, target, OURS).values())) for target in (LOWEST, RUNS))
    known = [row for row in chosen if row.target == RUNS and row.n_intervals]
    lines.append(f"each table by the others' rule: lowest {lowest:.2%}, runs {runs:.2%}; {intervals(known)}")
    return lines


def _with(forecast: rehearsal.Forecast, rule: Rule) -> rehearsal.Forecast:
    within, beyond = (replace(part, rule=rule) for part in (forecast.within, forecast.beyond))
    return replace(forecast, within=within, beyond=beyond)


def _over(names: Sequence[str], values: Sequence[dict[str, float]]) -> float:
    return geometric([value[name] for value in values for name in names if name in value])


def _scores(rows: Sequence[Unit]) -> dict[str, float]:
    """By table, the mean score of intervals."""
    known = [row for row in rows if row.n_intervals and row.target == RUNS]
    return {t: float(np.mean([row.score for row in known if row.table == t])) for t in {row.table for row in known}}


def main(arguments: list[str] | None = None) -> None:
    parser = Parser("python -m benchmarks.extrapolation", __doc__)
    parser.add_argument("data", type=Path, help="the folder of the public tables")
    parser.add_argument("--table", action="append", default=[], help="a table of your own; repeatable")
    parser.add_argument("--columns", default="", help="of your tables, as scaling fit table takes them")
    parser.add_argument("--group", help="the column that your tables are grouped by")
    parser.add_argument("--cuts", type=int, default=rehearsal.MOST_CUTS, help="of each group, at most (20)")
    parser.add_argument("--python", help="a Python that has the packages of others")
    parser.add_argument("--json", type=Path, help="every unit, as JSON")
    parser.add_argument(
        "--constants", action="store_true", help="choose the rule's constants, each table left out once"
    )
    options = parser.parse_args(arguments)
    at_least_one(options, "cuts")
    result = tables(options.data, options.table, options.columns, options.group)
    if options.constants:
        print("\n".join(constants(result, options.cuts)))
        return
    rows, absent = measured(result, options.cuts, options.python)
    if options.json is not None:
        options.json.write_text(
            json.dumps({"units": [asdict(row) for row in rows], "absent": absent}), encoding="utf-8"
        )
    print("\n".join(summary(rows, absent)))


if __name__ == "__main__":
    run(main)
