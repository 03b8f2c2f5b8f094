"""How the benchmarks measure: times by CUDA events, errors against a reference."""

from __future__ import annotations

import statistics
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import InputError
from ..ops import common
from .cases import Case

PAUSE, LONGEST_PAUSE = 10_000_000, 320_000_000  # cycles of the GPU, about 5 and 170 ms


class RoundedProducts(TorchDispatchMode):
    """Matrix products of operands rounded to bf16: the chunk backend with the kernels' roundings."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default):
            args = tuple(x.bfloat16().to(x.dtype) for x in args)
        return func(*args, **(kwargs or {}))


def gradients(run: Callable[[list[Tensor]], Tensor], inputs: list[Tensor], weight: Tensor) -> list[Tensor]:
    """The output and the gradients of its product with `weight`."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = run(leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, weight.to(out.dtype))]


def relative(computed: list[Tensor], expected: list[Tensor]) -> list[float]:
    return [
        ((a.double() - b.double()).norm() / b.double().norm().clamp(min=1e-30)).item()
        for a, b in zip(computed, expected, strict=True)
    ]


def median_ms(run: Callable[[], Any], repeats: int) -> float:
    """The GPU's time for `run`. The work is queued behind a pause; where the GPU was through with that before the host
    had queued all, as on a busy machine, it is queued again behind a pause twice as long."""
    flush = torch.empty(1 << 28, dtype=torch.int8, device="cuda")
    times: list[float] = []
    pause = PAUSE
    while len(times) < repeats + 3:
        torch.cuda._sleep(pause)
        flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        late = start.query()
        end.synchronize()
        if late and pause < LONGEST_PAUSE:
            pause *= 2
        else:
            times.append(start.elapsed_time(end))
    return statistics.median(times[3:])


def last_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:160]


def failed(what: str, error: Exception) -> dict[str, Any]:
    print(f"--- {what} failed", *traceback.format_exc().strip().splitlines()[-6:], sep="\n    ", flush=True)
    return {"error": last_line(error)}


def measure(case: Case, backend: str, shape: tuple[int, ...], repeats: int) -> dict[str, Any]:
    """The first call in seconds, forward and forward + backward in ms, and the memory they need beside the inputs, in
    MiB."""
    inputs, weight = case.inputs(*shape, dtype=torch.bfloat16, device="cuda", backend=backend)
    run = case.runs[backend]
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
    """Relative errors of outputs and gradients: of every backend against the recurrence in float64 on a short piece,
    and of the kernels against the fp32 chunk backend at full size. A backend is held against the function that it
    computes."""
    rows: list[dict[str, Any]] = []
    if "triton" not in case.runs:
        return rows
    short = (1, 500, shape[2], shape[3])
    for size, reference, backends in (
        (short, "naive", ("triton", "chunk", "rounded", *(name for name in chosen if name not in ("triton", "chunk")))),
        (shape, "chunk", ("triton",)),
    ):
        wide = torch.float64 if reference == "naive" else torch.float32
        expected: dict[Any, list[Tensor]] = {}  # by what computes it, and how its inputs are laid out
        for backend in backends:
            row: dict[str, Any] = {"case": case.name, "backend": backend, "against": reference, "shape": list(size)}
            inputs, weight = case.inputs(*size, dtype=torch.bfloat16, device="cuda", backend=backend)
            try:
                if backend == "rounded":
                    with RoundedProducts():
                        computed = gradients(case.runs["chunk"](*size), inputs, weight)
                elif backend in case.runs and backend in chosen:
                    computed = gradients(case.runs[backend](*size), inputs, weight)
                else:
                    continue
                right = case.reference(reference, backend)
                key = right, case.layouts.get(backend)
                if key not in expected:
                    expected[key] = gradients(right(*size), [x.to(wide) for x in inputs], weight.to(wide))
                apart = relative(computed, expected[key])
                row |= dict(zip(("out", *case.names), (f"{x:.1e}" for x in apart), strict=True))
                again = gradients(case.runs[backend](*size), inputs, weight) if backend == "triton" else computed
                row["repeats"] = all(torch.equal(a, b) for a, b in zip(computed, again, strict=True))
            except Exception as error:
                row |= failed(f"{case.name} {backend} errors", error)
            print(row, flush=True)
            rows.append(row)
    return rows


def require_gpu() -> None:
    """Raises InputError where there is none."""
    if not torch.cuda.is_available():
        raise InputError("this benchmark needs a GPU, and this machine has none")


def device() -> str:
    """The GPU, and the versions that its kernels depend on."""
    described = "no triton"
    if common.WITH_TRITON:
        from ..ops.triton import assembler

        described = assembler.described()
    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {described}"
