"""Seconds and memory of whole `scaling fit` commands on tables of 1,000 to 100,000 runs.

python -m benchmarks.fit_speed --table svg_extracted_data.csv

The tables are drawn from a known surface with 1% noise of whole runs: 1,000, 10,000 and 100,000 end points of 20 sizes,
and 1,000 runs of 1,000 sizes. --table adds one of yours. Seconds are of the wall and of the processor: on a machine
that does other things too the second tells more.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from analysis.fits.surface import Surface
from arch.arguments import Parser, at_least_one, run
from arch.tables import rows_table

TRUTH = Surface(1.69, 406.4, 410.7, 0.34, 0.28)
NOISE = 0.01
TABLES = {"1,000 runs of 20 sizes": (1_000, 20), "1,000 runs of 1,000 sizes": (1_000, 1_000)}
TABLES |= {"10,000 runs of 20 sizes": (10_000, 20), "100,000 runs of 20 sizes": (100_000, 20)}


def draw_table(path: Path, n_runs: int, n_sizes: int) -> None:
    """Write a CSV of `n_runs` end points: sizes of 10M to 10B, each on tokens about 20 times its parameters."""
    rng = np.random.default_rng(0)
    n_params = np.round(np.resize(np.geomspace(1e7, 1e10, n_sizes), n_runs))
    n_tokens = np.round(20 * n_params * np.exp(rng.standard_normal(n_runs)))
    loss = TRUTH.loss(n_params, n_tokens) * np.exp(NOISE * rng.standard_normal(n_runs))
    rows = zip(n_params, n_tokens, loss, strict=True)
    lines = [f"r{i},{n:.0f},{d:.0f},{value:.6f}" for i, (n, d, value) in enumerate(rows)]
    path.write_text("\n".join(["run,n_params,n_tokens,loss", *lines]) + "\n", encoding="utf-8")


def measure(name: str, words: list[str]) -> dict[str, str]:
    """A row on one command: seconds, seconds of the processor, peak memory of all commands so far."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "scaling", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    row = {"table": name, "seconds": f"{wall:.1f}"}
    if done.returncode:
        return row | {"of the processor": "failed", "most GB so far": (done.stderr.splitlines() or [""])[-1]}
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return row | {"of the processor": f"{used:.1f}", "most GB so far": f"{after.ru_maxrss / 2**20:.2f}"}


def main(arguments: list[str] | None = None) -> None:
    parser = Parser("python -m benchmarks.fit_speed", __doc__)
    parser.add_argument("--most", type=int, default=100_000, help="leave out tables of more runs (100000)")
    parser.add_argument("--approach", default="all", help="of scaling fit table (all)")
    parser.add_argument("--table", type=Path, help="one more table")
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    options = parser.parse_args(arguments)
    at_least_one(options, "most")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        tables = {name: size for name, size in TABLES.items() if size[0] <= options.most}
        for name, size in tables.items():
            path = Path(folder) / "runs.csv"
            draw_table(path, *size)
            rows.append(measure(name, ["fit", "table", str(path), "--approach", options.approach]))
        if options.table is not None:
            words = ["fit", "table", str(options.table), "--approach", options.approach]
            rows.append(measure(options.table.name, words))
    print(json.dumps(rows, indent=1) if options.json else rows_table(rows))


if __name__ == "__main__":
    run(main)
