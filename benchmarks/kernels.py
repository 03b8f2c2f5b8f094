"""Sequence operations beside other packages' on one GPU: `python -m arch.bench` with more backends, and a picture.

    python -m benchmarks.kernels --only tnl,hgrn2       ours, the chunk backend, softmax attention, and other packages'
    python -m benchmarks.kernels --plot kernels.html    1k to 64k tokens a row: time per token, and over the floor
    python -m benchmarks.kernels --rows rows.json --plot kernels.html    a picture of the rows of an earlier --json

flash-linear-attention (`fla`) and `mamba_ssm` are timed where they are installed; where one is not, its rows say so.
flash-linear-attention is given q after silu. Of cosFormer2 it turns q and k by torch; cosformer2-doubled is the part
that its kernels compute. kernel_peers.py says what mamba_ssm is given.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from arch.arguments import file_to_write, run
from arch.bench.cases import BACKENDS
from arch.bench.command import check, measure_all, parser, shapes_of, show
from arch.errors import InputError

from .kernel_peers import CASES_WITH_PEERS, PEERS
from .kernel_plot import shapes, write

ALL_BACKENDS = (*BACKENDS, *PEERS)


def main(arguments: list[str] | None = None) -> None:
    reader = parser("python -m benchmarks.kernels", __doc__, CASES_WITH_PEERS, ALL_BACKENDS)
    reader.add_argument("--plot", help="draw all rows in this HTML file; without --shape over 1k to 64k tokens a row")
    reader.add_argument("--rows", help="measure nothing: --plot these rows of an earlier --json")
    options = reader.parse_args(arguments)
    file_to_write(options.plot, "--plot")
    if options.rows:
        return write(rows_of(options), options.plot)
    check(options, CASES_WITH_PEERS, ALL_BACKENDS)
    by_length = options.plot and not options.shape
    rows = measure_all(options, CASES_WITH_PEERS, shapes(8, 128) if by_length else shapes_of(options.shape))
    show(rows, options.json)
    if options.plot:
        write(rows, options.plot)


def rows_of(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows with times of the file --rows. Raises InputError where it has none, or where --plot names no picture."""
    if not options.plot:
        raise InputError("--rows draws rows measured before: name the picture with --plot FILE")
    try:
        with open(options.rows, encoding="utf-8") as file:
            rows = [row for row in json.load(file) if "both_ms" in row]
        floors = [row["floor_both_ms"] for row in rows]
    except OSError as error:
        raise InputError(f"--rows {options.rows}: {error.strerror}; give a file that --json wrote") from None
    except (ValueError, KeyError, TypeError):
        floors = []
    if not floors:
        raise InputError(f"--rows {options.rows}: holds no times of this benchmark; give a file that --json wrote")
    return rows


if __name__ == "__main__":
    run(main)
