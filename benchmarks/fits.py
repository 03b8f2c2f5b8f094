"""Our fits beside packages that people would install instead, on the Chinchilla points and on drawn tables.

python -m benchmarks.fits --csv svg_extracted_data.csv --python PYTHON

PYTHON is one that has the packages (`chinchilla`, `simple-scaling-laws`, the latter from Python 3.12 on); a package
that it lacks is shown as absent. The drawn tables are 24 runs each, of a known surface with 1% noise of whole runs.
"""

from __future__ import annotations

import csv
import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import huber

from analysis.fits.parametric import fit_parametric
from analysis.fits.points import Points
from analysis.fits.solver import DELTA, HUBER, OBJECTIVES
from analysis.fits.surface import PARAMS, Surface
from arch.arguments import Parser, at_least_one, run
from arch.errors import InputError

TRUTH = Surface(1.69, 406.4, 410.7, 0.34, 0.28)
NOISE = 0.01
COVERED = ("E", "alpha", "beta")
HIGHEST = 5  # losses left out of the Chinchilla points, as Besiroglu et al. do
PEERS = Path(__file__).with_name("fit_peers.py")


def chinchilla_points(path: Path) -> Points:
    """The points of Besiroglu et al.'s CSV, D = C / 6 N, without the highest losses."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [[float(row[name]) for name in ("Model Size", "Training FLOP", "loss")] for row in csv.DictReader(file)]
    n, c, loss = np.array(sorted(rows, key=lambda row: row[2])[:-HIGHEST]).T
    return Points(n, c / 6 / n, c, loss)


def drawn_tables(count: int, seed: int = 0) -> list[Points]:
    rng = np.random.default_rng(seed)
    n, d = np.repeat(np.geomspace(1e7, 1e9, 6), 4), np.tile(np.geomspace(2e8, 2e10, 4), 6)
    losses = TRUTH.loss(n, d) * np.exp(NOISE * rng.standard_normal((count, len(n))))
    return [Points(n, d, 6 * n * d, loss) for loss in losses]


def ours(points: Points, objective: str) -> dict[str, Any]:
    start = time.perf_counter()
    fit = fit_parametric(points, objective=objective)
    assert fit.draws is not None
    intervals = {name: fit.draws.interval(getattr(fit.draws.surface, name)).tolist() for name in COVERED}
    return {"params": fit.surface.to_dict(), "intervals": intervals, "seconds": time.perf_counter() - start}


def peers(python: str, tables: Sequence[Points], draws: int) -> dict[str, Any]:
    """{package: its rows, or why there are none}. draws: of each table, for intervals.

    Raises InputError where `python` fails.
    """
    request = {
        "tables": [{"n": p.n_params.tolist(), "d": p.n_tokens.tolist(), "loss": p.loss.tolist()} for p in tables],
        "draws": draws,
    }
    done = subprocess.run(
        [python, str(PEERS)],
        input=json.dumps(request),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise InputError(f"{python} {PEERS.name}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
    rows: dict[str, Any] = json.loads(done.stdout)
    return rows


def objectives(params: dict[str, float], points: Points) -> dict[str, float]:
    """Both objectives at these parameters."""
    fitted = Surface(**{name: params[name] for name in PARAMS}).loss(points.n_params, points.n_tokens)
    return {
        "huber": float(huber(DELTA, np.log(points.loss / fitted)).sum()),
        "squares": float(((points.loss - fitted) ** 2).sum()),
    }


def report(name: str, rows: list[dict[str, Any]] | str, tables: Sequence[Points], has_chinchilla: bool) -> list[str]:
    """Lines on one package: the Chinchilla points, then the drawn tables together."""
    if isinstance(rows, str):
        return [f"{name}: {rows}"]
    failed = [row["failed"] for row in rows if "failed" in row]
    lines = [f"{name}: {len(failed)} of {len(rows)} tables failed ({failed[0]})"] if failed else []
    pairs = [(row, points) for row, points in zip(rows, tables, strict=True) if "failed" not in row]
    if has_chinchilla and pairs and pairs[0][1] is tables[0]:
        row, points = pairs.pop(0)
        params = ", ".join(f"{key} {row['params'][key]:.6g}" for key in PARAMS)
        reached = objectives(row["params"], points)
        lines.append(
            f"{name}, {len(points)} points: {params}; Huber {reached['huber']:.8f}, squares {reached['squares']:.6f}, "
            f"{row['seconds']:.2f} s"
        )
    if pairs:
        off = np.array([[row["params"][k] / getattr(TRUTH, k) - 1 for k in COVERED] for row, _ in pairs])
        reached_all = [objectives(row["params"], points) for row, points in pairs]
        parts = [f"{key} {100 * value:.1f}%" for key, value in zip(COVERED, np.sqrt((off**2).mean(0)), strict=True)]
        covers = "no intervals"
        if pairs[0][0]["intervals"]:
            hits = [
                row["intervals"][k][0] <= getattr(TRUTH, k) <= row["intervals"][k][1]
                for row, _ in pairs
                for k in COVERED
            ]
            width = np.median([row["intervals"]["alpha"][1] - row["intervals"]["alpha"][0] for row, _ in pairs])
            covers = f"nominal 95% covers {sum(hits)} of {len(hits)} (alpha's width {width:.3f})"
        lines.append(
            f"{name}, {len(pairs)} drawn tables: root mean square error {', '.join(parts)}; mean Huber "
            f"{np.mean([reached['huber'] for reached in reached_all]):.7f}, mean squares "
            f"{np.mean([reached['squares'] for reached in reached_all]):.6f}; {covers}; "
            f"{np.mean([row['seconds'] for row, _ in pairs]):.2f} s a table"
        )
    return lines


def main(arguments: list[str] | None = None) -> None:
    parser = Parser("python -m benchmarks.fits", __doc__)
    parser.add_argument("--csv", type=Path, help="svg_extracted_data.csv of Besiroglu et al.")
    parser.add_argument("--python", help="a Python that has the packages of others")
    parser.add_argument("--tables", type=int, default=20, help="drawn tables (20)")
    options = parser.parse_args(arguments)
    at_least_one(options, "tables")
    tables = drawn_tables(options.tables)
    if options.csv is not None:
        tables.insert(0, chinchilla_points(options.csv))
    for objective in (HUBER, *(name for name in OBJECTIVES if name != HUBER)):
        rows = [ours(points, objective) for points in tables]
        print("\n".join(report(f"ours, {objective}", rows, tables, options.csv is not None)), flush=True)
    others = peers(options.python, tables, 1000) if options.python else {"others": "absent: no --python given"}
    for name, rows_or_reason in others.items():
        print("\n".join(report(name, rows_or_reason, tables, options.csv is not None)))


if __name__ == "__main__":
    run(main)
