"""What to run first on a new machine: `python -m arch.bench --check`, a few minutes on one GPU.

    --json out.json    also write all rows to this file

It prints which kernels are off here, why, and what that costs; the errors of every operation's kernels, outputs and all
gradients, against the recurrence in float64; times of operations and of whole training steps beside the published ones,
which are of one H100 (docs/speed.md). It ends with status 1 where kernels compute wrong numbers or fail.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from ..arguments import Parser, file_to_write
from ..ops.common import device_obstacle
from ..tables import rows_table
from . import whole_model
from .cases import CASES, Case
from .measure import RoundedProducts, device, failed, gradients, measure, relative, require_gpu

SHORT, LONG = (1, 500, 8, 128), (4, 8192, 8, 128)  # rows, tokens, heads, width of a head: of errors, and of times
CHECKED = (
    *("hgrn2-silu", "hgrn2-far", "gla", "tnl-silu", "cosformer2-silu", "mamba2", "gated-deltanet", "kimi-delta"),
    *("hgrn1", "mamba1", "tpe"),
)
# Kernels are wrong from so many times the error of PyTorch's products with the same roundings on, and from so much on:
# the tests allow 1.5 times it, and what reads or sums wrong numbers is off by far more.
TIMES, LEAST = 3.0, 1e-2

# ms on one H100 80GB, Triton 3.7.1, ptxas 13.5, torch 2.11: forward and backward of an operation at LONG, bf16 ...
OPERATIONS = {"hgrn2-silu": 1.06, "hgrn2-far": 1.35, "tnl-silu": 0.64, "cosformer2-silu": 0.75, "mamba2": 0.67}
# ... and of replayed steps, with the options of `python -m arch.bench --model` that they were measured with
SMALL = "--size 8x256 --vocab-size 257 --batch 32 --context-length 2048"
STEPS = {
    SMALL: {"llama": 15.0, "tnl": 12.2, "hgrn2": 12.65, "cosformer2": 13.5},
    "--size 410m": {"llama": 262.1, "hgrn2": 186.7},
}


def main(arguments: list[str] | None = None) -> None:
    reader = Parser("python -m arch.bench", __doc__)
    reader.add_argument("--check", action="store_true")
    reader.add_argument("--json", help="also write all rows to this file")
    options = reader.parse_args(arguments)
    file_to_write(options.json, "--json")
    require_gpu()
    print(device(), flush=True)
    off = switched_off()
    print("\n".join(off) or "no kernel is off", flush=True)
    kernels = device_obstacle(torch.device("cuda")) is None
    errors = [errors_of(CASES[name], SHORT, torch.bfloat16, "cuda") for name in CHECKED] if kernels else []
    print(rows_table(errors), flush=True)
    times = [*operation_times(), *step_times()] if kernels else step_times()
    print(rows_table(times))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"device": device(), "off": off, "errors": errors, "times": times}, file, indent=1)
    if wrong := [row["case"] for row in errors if row["kernels"] != "right"]:
        print(f"error: the kernels of {', '.join(wrong)} do not compute what they should on this GPU", file=sys.stderr)
        sys.exit(1)


def switched_off() -> list[str]:
    """A line for every part of the kernels that does not run on this GPU."""
    if (obstacle := device_obstacle(torch.device("cuda"))) is not None:
        return [f"all kernels are off: {obstacle}; PyTorch's own operations run instead"]
    from ..ops.triton.device_config import switched_off as parts

    return list(parts())


def errors_of(case: Case, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> dict[str, Any]:
    """The output or gradient of a case's kernels that is furthest off, its relative error against the recurrence in
    float64, that of the chunk backend with products rounded to bf16, and whether the kernels are right."""
    try:
        inputs, weight = case.inputs(*shape, dtype=dtype, device=device, backend="triton")
        exact = gradients(case.runs["naive"](*shape), [x.double() for x in inputs], weight.double())
        kernels = relative(gradients(case.runs["triton"](*shape), inputs, weight), exact)
        with RoundedProducts():
            rounded = relative(gradients(case.runs["chunk"](*shape), inputs, weight), exact)
    except Exception as error:
        return {"case": case.name, "kernels": "fail"} | failed(f"{case.name} errors", error)
    shares = [
        error / max(TIMES * same, LEAST) if error == error else float("inf")
        for error, same in zip(kernels, rounded, strict=True)
    ]
    worst = max(range(len(shares)), key=shares.__getitem__)
    return {
        "case": case.name,
        "kernels": "right" if shares[worst] <= 1 else "WRONG",
        "worst": ("out", *case.names)[worst],
        "error": f"{kernels[worst]:.1e}",
        "rounding": f"{rounded[worst]:.1e}",
    }


def beside(what: str, here: float | None, published: float, problem: str = "") -> dict[str, Any]:
    """A row of the table of times."""
    row = {"ms": what, "here": here if here is not None else "-", "published": published}
    return row | {"times": f"{here / published:.2f}" if here else "-"} | ({"error": problem} if problem else {})


def operation_times() -> list[dict[str, Any]]:
    """Forward and backward of the operations, beside the published times."""
    rows = []
    for name, published in OPERATIONS.items():
        try:
            row = measure(CASES[name], "triton", LONG, repeats=10)
        except Exception as error:
            row = failed(f"{name} triton", error)
        rows.append(beside(f"operation of {name}", row.get("both_ms"), published, row.get("error", "")))
        torch.cuda.empty_cache()
    return rows


def step_times() -> list[dict[str, Any]]:
    """Replayed training steps, beside the published times."""
    rows = []
    for words, published in STEPS.items():
        options = whole_model.parser().parse_args(["--model", ",".join(published), "--steps", "5", *words.split()])
        for model, size, config in whole_model.cases(options):
            row = whole_model.measure_one(model, config, options, whole_model.make)
            rows.append(beside(f"step of {model} {size}", row.get("graph_ms"), published[model], row.get("error", "")))
    return rows
