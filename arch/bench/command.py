"""Sequence operations side by side on one GPU: our kernels, the chunk backend and softmax attention.

    python -m arch.bench --check              first on a new machine: see check.py
    python -m arch.bench                      all cases at B4 T8192 H8 D128, errors against float64 first
    python -m arch.bench --only tnl --shape 8,2048,16,128 --json out.json
    python -m arch.bench --model llama,tnl    whole training steps instead: see whole_model.py

Times are medians of CUDA events. The work is queued behind a pause, so that the GPU never waits for the host, and the
L2 cache is overwritten before each repetition. Where a backend fails, its row says why and the others go on.

Cases that end in -silu apply silu to q themselves, and its time counts; the others are given q after silu.
cosformer2-doubled is cosformer2 with q and k already rotated. Other packages' kernels, times over the length and sizes
of tiles: benchmarks/README.md in the repository.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from ..arguments import Parser, at_least_one, file_to_write, whole_numbers
from ..errors import InputError
from ..tables import rows_table
from .cases import BACKENDS, CASES, Case
from .measure import device, errors, failed, measure, require_gpu

Shape = tuple[int, ...]  # rows, tokens, heads, width of a head


def main(arguments: list[str] | None = None) -> None:
    words = sys.argv[1:] if arguments is None else arguments
    if "--check" in words:
        from .check import main as check_machine

        return check_machine(arguments)
    if any(word.startswith("--model") for word in words):
        from .whole_model import main as whole_steps

        return whole_steps(arguments)
    if stray := [word for word in words if word.partition("=")[0] in ("--size", "--vocab-size")]:
        raise InputError(f"{stray[0]}: belongs to --model, which names architectures; see --model llama --help")
    reader = parser("python -m arch.bench", __doc__, CASES, BACKENDS)
    reader.add_argument(
        "--model",
        help="whole training steps of these architectures instead, with --size and more: --model llama --help",
    )
    reader.add_argument("--check", action="store_true", help="what is to be run first on a new machine: --check --help")
    options = reader.parse_args(arguments)
    check(options, CASES, BACKENDS)
    show(measure_all(options, CASES, shapes_of(options.shape)), options.json)


def parser(prog: str, description: str | None, cases: Mapping[str, Case], backends: Sequence[str]) -> Parser:
    """The options that say which `cases` are measured, by which `backends`, and how."""
    reader = Parser(prog, description)
    reader.add_argument("--only", default=",".join(cases), help="cases, comma-separated: " + ", ".join(cases))
    reader.add_argument(
        "--backends", default=",".join(backends), help="backends, comma-separated: " + ", ".join(backends)
    )
    reader.add_argument("--shape", help="B,T,H,D (default 4,8192,8,128); several shapes are separated by spaces")
    reader.add_argument("--repeats", type=int, default=20)
    reader.add_argument("--no-check", action="store_true", help="skip the errors")
    reader.add_argument("--json", help="also write all rows to this file")
    return reader


def check(options: argparse.Namespace, cases: Mapping[str, Case], backends: Sequence[str]) -> None:
    """Raises InputError for options of `parser` that cannot be measured, or where there is no GPU."""
    at_least_one(options, "repeats")
    file_to_write(options.json, "--json")
    names_of(options.only, cases)
    names_of(options.backends, backends)
    shapes_of(options.shape)
    require_gpu()


def names_of(text: str, valid: Iterable[str]) -> list[str]:
    """The names of a comma-separated list. Raises InputError for one that is not `valid`."""
    names, valid = text.split(","), list(valid)
    for name in names:
        if name not in valid:
            raise InputError(f"unknown {name!r} (valid: {', '.join(valid)})")
    return names


def shapes_of(text: str | None) -> list[Shape]:
    """The shapes of --shape. Raises InputError for one that is not four whole numbers."""
    shapes = [tuple(whole_numbers(shape, "--shape")) for shape in (text or "4,8192,8,128").split()]
    for shape in shapes:
        if len(shape) != 4:
            raise InputError(f"--shape {','.join(map(str, shape))}: write rows, tokens, heads and width: 4,8192,8,128")
    return shapes


def measure_all(
    options: argparse.Namespace, cases: Mapping[str, Case], shapes: Sequence[Shape]
) -> list[dict[str, Any]]:
    """A row for each shape, case and backend, printed as soon as it is there."""
    print(device(), flush=True)
    backends = options.backends.split(",")
    return [
        row
        for shape in shapes
        for name in options.only.split(",")
        for row in _measure(cases[name], shape, backends, options)
    ]


def _measure(case: Case, shape: Shape, backends: list[str], options: argparse.Namespace) -> list[dict[str, Any]]:
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


def show(rows: list[dict[str, Any]], path: str | None) -> None:
    """Print the errors, then the times; write all rows to `path` where one is given."""
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    print(rows_table([row for row in rows if "against" in row]))
    print(rows_table([row for row in rows if "against" not in row]))
