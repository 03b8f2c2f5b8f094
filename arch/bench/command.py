"""Sequence operations side by side on one GPU: our kernels, the chunk backend, softmax attention,
flash-linear-attention and mamba_ssm where they are installed.

    python -m arch.bench                      all cases at B4 T8192 H8 D128, errors against float64 first
    python -m arch.bench --only tnl --shape 8,2048,16,128 --json out.json
    python -m arch.bench --plot bench.html    1k to 64k tokens a row: time per token, and as a multiple of the floor
    python -m arch.bench --sweep              sizes of tiles, kernel by kernel
    python -m arch.bench --lra                whole small models, steps a second at 1K to 5K tokens: lra.py
    python -m arch.bench --model llama,tnl    whole training steps instead: see whole_model.py

Times are medians of CUDA events. The work is queued behind a pause, so that the GPU never waits for the host, and the
L2 cache is overwritten before each repetition. Where a backend fails, its row says why and the others go on.

Cases that end in -silu apply silu to q themselves, and its time counts; the others, and so flash-linear-attention, are
given q after silu. peers.py tells what mamba_ssm is given. cosformer2-doubled is cosformer2 with q and k already
rotated, which is the part that flash-linear-attention's kernels compute.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from ..arguments import Parser, at_least_one, file_to_write, whole_numbers
from ..errors import InputError
from ..tables import rows_table
from .cases import BACKENDS, CASES, Case
from .measure import device, errors, failed, measure


def main(arguments: list[str] | None = None) -> None:
    if any(word.startswith("--model") for word in arguments or sys.argv[1:]):
        from .whole_model import main as whole_steps

        return whole_steps(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    if stray := [word for word in given if word.partition("=")[0] in ("--size", "--peers", "--vocab-size")]:
        raise InputError(f"{stray[0]}: belongs to --model, which names architectures; see --model llama --help")
    parser = Parser("python -m arch.bench", __doc__)
    parser.add_argument("--only", default=",".join(CASES), help="cases, comma-separated: " + ", ".join(CASES))
    parser.add_argument(
        "--backends", default=",".join(BACKENDS), help="backends, comma-separated: " + ", ".join(BACKENDS)
    )
    parser.add_argument("--shape", help="B,T,H,D (default 4,8192,8,128); several shapes are separated by spaces")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--no-check", action="store_true", help="skip the errors")
    parser.add_argument("--sweep", action="store_true", help="time kernels over sizes of tiles instead")
    parser.add_argument("--processes", type=int, default=12, help="that compile before a sweep")
    parser.add_argument("--lra", action="store_true", help="HGRN's speed table instead; --only names architectures")
    parser.add_argument("--batch", type=int, default=1, help="rows of --lra")
    parser.add_argument("--json", help="also write all rows to this file")
    parser.add_argument("--plot", help="draw all rows in this HTML file; without --shape over 1k to 64k tokens a row")
    parser.add_argument("--rows", help="measure nothing: --plot these rows of an earlier --json")
    parser.add_argument(
        "--model",
        help="whole training steps of these architectures instead, with --size, --peers and more: --model llama --help",
    )
    options = parser.parse_args(arguments)
    at_least_one(options, "repeats", "processes", "batch")
    file_to_write(options.json, "--json")
    file_to_write(options.plot, "--plot")
    if options.lra:
        return _lra(options)
    chosen, backends = options.only.split(","), options.backends.split(",")
    for name, valid in [(x, CASES) for x in chosen] + [(x, BACKENDS) for x in backends]:
        if name not in valid:
            raise InputError(f"unknown {name!r} (valid: {', '.join(valid)})")
    if options.rows:
        return _plot(options)
    shapes = shapes_of(options)
    if not torch.cuda.is_available():
        raise InputError("arch.bench needs a GPU and found none")
    print(device(), flush=True)
    rows: list[dict[str, Any]] = []
    if options.sweep:
        from .sweep import sweep

        for shape in shapes:
            rows += sweep(chosen, shape, options.repeats, options.processes)
    else:
        for shape in shapes:
            for name in chosen:
                rows += measure_all(CASES[name], shape, backends, options)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    if options.plot:
        from .plot import write

        write(rows, options.plot)
    print(rows_table([row for row in rows if "against" in row]))
    print(rows_table([row for row in rows if "against" not in row]))


def shapes_of(options: Any) -> list[tuple[int, ...]]:
    if options.plot and not options.shape:
        from .plot import shapes

        return shapes(8, 128)
    found = [tuple(whole_numbers(shape, "--shape")) for shape in (options.shape or "4,8192,8,128").split()]
    for shape in found:
        if len(shape) != 4:
            raise InputError(f"--shape {','.join(map(str, shape))}: write rows, tokens, heads and width: 4,8192,8,128")
    return found


def _plot(options: Any) -> None:
    from .plot import write

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
    write(rows, options.plot)


def _lra(options: Any) -> None:
    from ..config import ARCHS
    from .lra import lra, show

    default = ",".join(CASES)
    archs = ARCHS if options.only == default else tuple(options.only.split(","))
    for name in archs:
        if name not in ARCHS:
            raise InputError(f"unknown architecture {name!r} (valid: {', '.join(ARCHS)})")
    rows = lra(archs, options.batch)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    print(show(rows))


def measure_all(case: Case, shape: tuple[int, ...], backends: list[str], options: Any) -> list[dict[str, Any]]:
    rows = []
    for backend in backends:
        if backend not in case.runs:
            continue
        row: dict[str, Any] = {"case": case.name, "shape": ",".join(map(str, shape)), "backend": backend}
        try:
            row |= measure(case, backend, shape, options.repeats) | case.floors(*shape)
        except Exception as error:
            row |= failed(f"{case.name} {backend}", error)
        print(row, flush=True)
        rows.append(row)
        torch.cuda.empty_cache()
    if not options.no_check:
        try:
            rows += errors(case, shape, backends)
        except Exception as error:
            rows.append({"case": case.name} | failed(f"{case.name} errors", error))
        torch.cuda.empty_cache()
    return rows
