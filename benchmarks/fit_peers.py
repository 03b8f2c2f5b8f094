"""Fits tables by packages of others, under the Python that has them: JSON on standard input and output.

Run by fits.py as a file; it imports nothing of this project. {"tables": [{"n", "d", "loss"}], "draws"} becomes
{package: [{"params", "intervals", "seconds"}]} or {package: reason}. draws: of each table, for intervals.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import time
from typing import Any

Table = dict[str, list[float]]
GRID = {"E": (1.0, 2.0), "a": (3.0, 8.0), "b": (3.0, 8.0), "alpha": (0.2, 0.5), "beta": (0.2, 0.5)}


def chinchilla(table: Table, draws: int) -> dict[str, Any]:
    """`chinchilla`: BFGS from 32 starts, its log_huber with delta 1e-3 in the place of its default, an asymmetric
    absolute error that fits another thing (the floor)."""
    core, metrics = importlib.import_module("chinchilla.core"), importlib.import_module("chinchilla._metrics")
    with tempfile.TemporaryDirectory() as folder:
        fit = core.Chinchilla(
            folder, GRID, loss_fn=lambda given, fitted: metrics.log_huber(given, fitted, 1e-3), log_level=50
        )
        for n, d, loss in zip(table["n"], table["d"], table["loss"], strict=True):
            fit.database.append(N=n, D=d, loss=loss)
        fit.visualizer.optim = lambda *args, **kwargs: None  # a picture
        fit.fit(parallel=True)
    return {"params": fit.params, "intervals": {}}


def simple_scaling_laws(table: Table, draws: int) -> dict[str, Any]:
    """`simple-scaling-laws`: its law separable-power."""
    package, frames = importlib.import_module("simple_scaling_laws"), importlib.import_module("polars")
    rows = {
        "training_run_id": [f"r{i}" for i in range(len(table["n"]))],
        "test_set_id": ["one"] * len(table["n"]),
        "model_size__n": table["n"],
        "dataset_size__d": table["d"],
        "test_loss__nats": table["loss"],
    }
    model = package.fit(frames.DataFrame(rows), law="separable-power", n_draws=draws, seed=0)
    fit = model.fits["test_loss__nats"]
    reference = importlib.import_module("simple_scaling_laws.model").raw_scale_params
    raw = reference(model.law, fit.params, model._reference)
    intervals = model.conf_int("test_loss__nats")
    exponents = {name: list(intervals[name]) for name in ("E", "alpha", "beta") if name in intervals}
    return {"params": {key: float(value) for key, value in raw.items()}, "intervals": exponents}


PACKAGES = {"chinchilla": chinchilla, "simple_scaling_laws": simple_scaling_laws}


def main() -> None:
    request = json.load(sys.stdin)
    results: dict[str, Any] = {}
    for name, fit in PACKAGES.items():
        try:
            importlib.import_module(name)
        except ImportError as error:
            results[name] = f"absent: {error}"
            continue
        rows = []
        for table in request["tables"]:
            start = time.perf_counter()
            try:
                row = fit(table, request["draws"])
            except Exception as error:  # whatever a package of others raises is its result
                row = {"failed": f"{type(error).__name__}: {error}"}
            rows.append(row | {"seconds": time.perf_counter() - start})
        results[name] = rows
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
