"""Sequence operations side by side on one GPU: our kernels, the chunk form, softmax attention, flash-linear-attention
and mamba_ssm where they are installed.

    python -m arch.bench                      all cases at B4 T8192 H8 D128, errors against float64 first
    python -m arch.bench --only tnl --shape 8,2048,16,128 --json out.json
    python -m arch.bench --plot bench.html    1k to 64k tokens a row: time per token, and as a multiple of the floor
    python -m arch.bench --sweep              sizes of tiles, kernel by kernel
    python -m arch.bench --lra                whole small models, steps a second at 1K to 5K tokens: bench_lra.py
    python -m arch.bench --model llama,tnl    whole training steps instead: see bench_model.py

Times are medians of CUDA events around work queued behind a pause, so the host is never waited for, with the L2 cache
overwritten before each repetition. Nothing here stops at a form that fails: its row says why.

Cases that end in -silu are given q before its silu, which is then part of what is timed; to the others, and so to
flash-linear-attention, it is given behind it. What mamba_ssm is given stands in bench_peers.py. cosformer2-doubled is
what remains of cosformer2 where q and k come turned: flash-linear-attention's own share of it.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .arguments import Parser, at_least_one, file_to_write, run, whole_numbers
from .bench_cases import CASES, FORMS, Case
from .bench_peers import LAYOUTS
from .errors import InputError
from .ops import common


class RoundedProducts(TorchDispatchMode):
    """Matrix products of operands rounded to bf16: the chunk form with the kernels' roundings."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default):
            args = tuple(x.bfloat16().to(x.dtype) for x in args)
        return func(*args, **(kwargs or {}))


def gradients(run: Callable[[list[Tensor]], Tensor], inputs: list[Tensor], weight: Tensor) -> list[Tensor]:
    """The output and the gradients of its product with `weight`."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = run(leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, weight.to(out.dtype))]


def relative(found: list[Tensor], expected: list[Tensor]) -> list[float]:
    return [
        ((a.double() - b.double()).norm() / b.double().norm().clamp(min=1e-30)).item()
        for a, b in zip(found, expected, strict=True)
    ]


def median_ms(run: Callable[[], Any], repeats: int) -> float:
    flush = torch.empty(1 << 28, dtype=torch.int8, device="cuda")
    times = []
    for index in range(repeats + 3):
        torch.cuda._sleep(10_000_000)  # the host runs ahead
        flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        if index >= 3:
            times.append(start.elapsed_time(end))
    return statistics.median(times)


def last_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:160]


def failed(what: str, error: Exception) -> dict[str, Any]:
    print(f"--- {what} failed", *traceback.format_exc().strip().splitlines()[-6:], sep="\n    ", flush=True)
    return {"error": last_line(error)}


def measure(case: Case, form: str, shape: tuple[int, ...], repeats: int) -> dict[str, Any]:
    """First call in seconds, forward and forward + backward in ms, and what they need beyond the inputs in MiB."""
    inputs, weight = case.inputs(*shape, dtype=torch.bfloat16, device="cuda", form=form)
    run = case.runs[form]
    run_it = run(*shape)
    begin = time.perf_counter()
    gradients(run_it, inputs, weight)
    torch.cuda.synchronize()
    row: dict[str, Any] = {"first_s": round(time.perf_counter() - begin, 2)}
    host = []
    for _ in range(5):
        begin = time.perf_counter()
        gradients(run_it, inputs, weight)
        host.append(time.perf_counter() - begin)
        torch.cuda.synchronize()
    row["host_ms"] = round(1e3 * statistics.median(host), 2)  # the allocator's cache filled, as in training
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    gradients(run_it, inputs, weight)
    row["peak_mib"] = round((torch.cuda.max_memory_allocated() - before) / 2**20)
    with torch.no_grad():
        row["forward_ms"] = round(median_ms(lambda: run_it(inputs), repeats), 4)
    row["both_ms"] = round(median_ms(lambda: gradients(run_it, inputs, weight), repeats), 4)
    return row


def errors(case: Case, shape: tuple[int, ...], chosen: list[str]) -> list[dict[str, Any]]:
    """Relative errors of outputs and gradients: of every form against the recurrence in float64 on a short piece, and
    of the kernels against the fp32 chunk form at full size. A form is held against the function that it computes."""
    rows: list[dict[str, Any]] = []
    if "triton" not in case.runs:
        return rows
    short = (1, 500, shape[2], shape[3])
    for size, reference, forms in (
        (short, "naive", ("triton", "chunk", "rounded", "fla", "mamba_ssm")),
        (shape, "chunk", ("triton",)),
    ):
        wide = torch.float64 if reference == "naive" else torch.float32
        expected: dict[Any, list[Tensor]] = {}  # by what computes it, and how its inputs are laid out
        for form in forms:
            row: dict[str, Any] = {"case": case.name, "form": form, "against": reference, "shape": list(size)}
            inputs, weight = case.inputs(*size, dtype=torch.bfloat16, device="cuda", form=form)
            try:
                if form == "rounded":
                    with RoundedProducts():
                        found = gradients(case.runs["chunk"](*size), inputs, weight)
                elif form in case.runs and form in chosen:
                    found = gradients(case.runs[form](*size), inputs, weight)
                else:
                    continue
                right = case.reference(reference, form)
                key = right, LAYOUTS.get((case.name, form))
                if key not in expected:
                    expected[key] = gradients(right(*size), [x.to(wide) for x in inputs], weight.to(wide))
                apart = relative(found, expected[key])
                row |= dict(zip(("out", *case.names), (f"{x:.1e}" for x in apart), strict=True))
                again = gradients(case.runs[form](*size), inputs, weight) if form == "triton" else found
                row["repeats"] = all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
            except Exception as error:
                row |= failed(f"{case.name} {form} errors", error)
            print(row, flush=True)
            rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *([str(row.get(name, "")) for name in names] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(names))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells)


def main(arguments: list[str] | None = None) -> None:
    if any(word.startswith("--model") for word in arguments or sys.argv[1:]):
        from .bench_model import main as whole_steps

        return whole_steps(arguments)
    parser = Parser("python -m arch.bench", __doc__)
    parser.add_argument("--only", default=",".join(CASES), help="cases, comma-separated: " + ", ".join(CASES))
    parser.add_argument("--forms", default=",".join(FORMS), help="forms, comma-separated: " + ", ".join(FORMS))
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
    parser.add_argument("--model", help="whole training steps of these architectures instead; has its own --help")
    options = parser.parse_args(arguments)
    at_least_one(options, "repeats", "processes", "batch")
    file_to_write(options.json, "--json")
    file_to_write(options.plot, "--plot")
    if options.lra:
        return _lra(options)
    chosen, forms = options.only.split(","), options.forms.split(",")
    for name, valid in [(x, CASES) for x in chosen] + [(x, FORMS) for x in forms]:
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
        from .bench_sweep import sweep

        for shape in shapes:
            rows += sweep(chosen, shape, options.repeats, options.processes)
    else:
        for shape in shapes:
            for name in chosen:
                rows += measure_all(CASES[name], shape, forms, options)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)
    if options.plot:
        from .bench_plot import write

        write(rows, options.plot)
    print(table([row for row in rows if "against" in row]))
    print(table([row for row in rows if "against" not in row]))


def shapes_of(options: Any) -> list[tuple[int, ...]]:
    if options.plot and not options.shape:
        from .bench_plot import shapes

        return shapes(8, 128)
    found = [tuple(whole_numbers(shape, "--shape")) for shape in (options.shape or "4,8192,8,128").split()]
    for shape in found:
        if len(shape) != 4:
            raise InputError(f"--shape {','.join(map(str, shape))}: write rows, tokens, heads and width: 4,8192,8,128")
    return found


def _plot(options: Any) -> None:
    from .bench_plot import write

    if not options.plot:
        raise InputError("--rows draws rows measured before: name the picture with --plot FILE")
    try:
        with open(options.rows) as file:
            rows = [row for row in json.load(file) if "both_ms" in row]
        floors = [row["floor_both_ms"] for row in rows]
    except OSError as error:
        raise InputError(f"--rows {options.rows}: {error.strerror}; give a file that --json wrote") from None
    except (ValueError, KeyError, TypeError):
        floors = []
    if not floors:
        raise InputError(f"--rows {options.rows}: holds no times of this benchmark; give a file that --json wrote")
    write(rows, options.plot)


def device() -> str:
    described = "no triton"
    if common.WITH_TRITON:
        from .ops.triton import assembler

        described = assembler.described()
    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {described}"


def _lra(options: Any) -> None:
    from .bench_lra import lra, show
    from .config import ARCHS

    default = ",".join(CASES)
    archs = ARCHS if options.only == default else tuple(options.only.split(","))
    for name in archs:
        if name not in ARCHS:
            raise InputError(f"unknown architecture {name!r} (valid: {', '.join(ARCHS)})")
    rows = lra(archs, options.batch)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)
    print(show(rows))


def measure_all(case: Case, shape: tuple[int, ...], forms: list[str], options: Any) -> list[dict[str, Any]]:
    rows = []
    for form in forms:
        if form not in case.runs:
            continue
        row: dict[str, Any] = {"case": case.name, "shape": ",".join(map(str, shape)), "form": form}
        try:
            row |= measure(case, form, shape, options.repeats) | case.floors(*shape)
        except Exception as error:
            row |= failed(f"{case.name} {form}", error)
        print(row, flush=True)
        rows.append(row)
        torch.cuda.empty_cache()
    if not options.no_check:
        try:
            rows += errors(case, shape, forms)
        except Exception as error:
            rows.append({"case": case.name} | failed(f"{case.name} errors", error))
        torch.cuda.empty_cache()
    return rows


if __name__ == "__main__":
    run(main)
