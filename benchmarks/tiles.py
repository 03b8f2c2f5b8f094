"""Every kernel's own time over sizes of tiles, warps and stages, in one run on one GPU.

    python -m benchmarks.tiles --only tnl,hgrn2 --shape 4,8192,8,128

A trial sets the configuration of all the kernels of a case at once; its row has each kernel's time, so that the best of
each is read off its own column, their sum, and the times of whole passes. Trials are compiled beforehand by processes
of their own, on a short sequence.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch

from arch.arguments import Parser, at_least_one, file_to_write, run
from arch.bench.cases import CASES
from arch.bench.command import names_of, shapes_of, show
from arch.bench.measure import device, failed, gradients, last_line, median_ms, require_gpu
from arch.kernel_config import override

Trial = dict[str, Any]


def trial(chunk: int, states: tuple[int, ...], output: tuple[Any, ...], backward: tuple[Any, ...]) -> Trial:
    return Trial(
        chunk=chunk,
        state_tile=states[:2],
        state_warps=states[2],
        state_stages=states[3],
        segments=states[4],
        output_tile=output[:2],
        output_warps=output[2],
        output_registers=output[3],
        operands_tile=max(64, backward[0]),
        backward_tile=backward[:2],
        backward_warps=backward[2],
        backward_registers=backward[3],
    )


def sizes(tile: int | tuple[int, ...]) -> tuple[int, ...]:
    return tile if isinstance(tile, tuple) else (tile,)


def decay_trial(
    chunk: int, segments: int, values: tuple[int, ...], keys: tuple[int, ...], sums: tuple[int, ...]
) -> Trial:
    return Trial(
        chunk=chunk,
        segments=segments,
        tile=values[0],
        warps=values[1],
        stages=values[2],
        key_tile=keys[0],
        key_warps=keys[1],
        key_stages=keys[2],
        learned_stages=keys[2],
        sum_tile=sums[:2],
        sum_warps=sums[2],
        sum_stages=sums[3],
        tma=False,
    )


def rotary_trial(
    chunk: int, states: tuple[int, ...], output: tuple[int, ...], keys: tuple[int, ...], values: tuple[int, ...],
    registers: int | None,
) -> Trial:  # fmt: skip
    return Trial(
        chunk=chunk,
        segments=states[4],
        state_tile=states[:2],
        state_warps=states[2],
        state_stages=states[3],
        output_tile=output[0],
        output_stages=output[1],
        key_tile=keys[0],
        key_stages=keys[1],
        value_tile=values[0],
        value_stages=values[1],
        registers=registers,
        warps=chunk // 16,
        sequential=False,
    )


def trials(case: str, width: int) -> list[Trial]:
    """Sets of sizes (kernel_config.py); only those that fit heads of `width` channels."""
    case = case.removesuffix("-silu").removesuffix("-far")
    if case in ("hgrn2", "gla"):
        # chunk, states: d_k, d_v, warps, stages, segments; output: d_k, warps, registers; backward: the same
        rows = [
            trial(c, states, (ok, width, *out), (bk, width, *back))
            for c, states, (ok, *out), (bk, *back) in (
                (64, (32, 128, 4, 4, 1), (128, 4, None), (64, 4, None)),
                (64, (32, 32, 4, 4, 1), (128, 4, 168), (128, 8, None)),
                (64, (64, 64, 4, 4, 1), (64, 4, None), (64, 4, 168)),
                (64, (32, 64, 4, 4, 1), (128, 8, 128), (32, 2, None)),
                (64, (32, 128, 4, 5, 2), (32, 4, None), (128, 8, 128)),
                (32, (32, 128, 4, 4, 1), (128, 2, None), (64, 4, None)),
                (32, (64, 64, 4, 4, 1), (64, 2, None), (64, 4, 168)),
                (32, (32, 64, 4, 4, 2), (128, 4, None), (128, 8, None)),
                (128, (32, 128, 4, 4, 1), (128, 8, None), (64, 4, None)),
            )
        ]
    elif case == "cosformer2":
        # chunk; states: d_k, d_v, warps, stages, segments; output, keys, values: d_k, stages; registers
        rows = [
            rotary_trial(*row)
            for row in (
                (64, (32, 128, 8, 4, 1), (32, 3), (32, 1), (16, 3), 168),
                (64, (32, 128, 8, 5, 1), (32, 4), (32, 2), (32, 3), None),
                (64, (32, 64, 4, 3, 1), (32, 2), (32, 1), (32, 3), None),
                (64, (32, 128, 8, 3, 1), (64, 1), (32, 1), (32, 2), 168),
                (64, (32, 128, 8, 4, 3), (16, 3), (16, 2), (16, 2), 128),
                (128, (32, 128, 8, 4, 1), (32, 3), (32, 2), (32, 3), None),
            )
        ]
        # and the rules' sizes: where they run, the runs that keep their states in registers
        rows.append(Trial(chunk=64, segments=0))
    else:
        # chunk, segments; values: columns, warps, stages; keys: the same; sums: d_k, d_v, warps, stages
        rows = [
            decay_trial(*row)
            for row in (
                (64, 0, (64, 4, 3), (64, 4, 3), (128, 64, 4, 3)),
                (64, 0, (64, 4, 2), (64, 4, 2), (128, 64, 4, 4)),
                (64, 0, (32, 4, 3), (32, 4, 3), (64, 64, 4, 3)),
                (64, 0, (64, 8, 2), (32, 4, 3), (64, 128, 4, 2)),
                (64, 0, (64, 8, 3), (32, 4, 2), (128, 64, 8, 2)),
                (64, 1, (32, 8, 2), (32, 4, 2), (128, 64, 4, 3)),
                (64, 8, (64, 4, 3), (64, 4, 2), (128, 64, 8, 3)),
                (32, 0, (64, 4, 3), (64, 4, 3), (128, 128, 8, 3)),
                (32, 0, (64, 8, 3), (32, 4, 3), (128, 64, 8, 3)),
                (32, 0, (32, 4, 2), (32, 4, 2), (64, 128, 4, 3)),
            )
        ]
        # and, where they run, the kernels for Hopper, whose other sizes are fixed
        rows += [Trial(chunk=64, segments=segments) for segments in (0, 2, 8)]
    return [
        row for row in rows if all(size <= width for key in row if key.endswith("tile") for size in sizes(row[key]))
    ]


class Timed:
    """A kernel whose launches are put between events."""

    def __init__(self, kernel: Any, log: list[tuple[str, Any, Any]]) -> None:
        self.kernel, self.log = kernel, log

    def __getitem__(self, grid: Any) -> Any:
        launch = self.kernel[grid]

        def run(*args: Any, **options: Any) -> None:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            launch(*args, **options)
            end.record()
            name = self.kernel.fn.__name__ + ("_keys" if options.get("KEYS") else "")
            name += "_reverse" if options.get("REVERSE") else ""
            self.log.append((name, start, end))

        return run


def timed_kernels() -> dict[Any, tuple[str, ...]]:
    """{module: the names of the kernels that it launches}."""
    from arch.ops.decay_attention.triton import operator as decay
    from arch.ops.decay_attention.triton import rotary_hopper, rotary_hopper_keys, rotary_operator, tma
    from arch.ops.gated_attention.triton import operator as gated
    from arch.ops.gated_attention.triton import state_pass
    from arch.ops.triton.device_config import GLUON

    names = {
        gated: ("gated_operands", "gated_output", "gated_values", "gated_backward", "far_scores", "far_gradients"),
        state_pass: ("gated_states", "gated_run", "carry"),
        decay: ("activate", "decay_rows", "decay_sums", "decay_attend"),
        tma: ("decay_sums_hopper", "decay_attend_hopper"),
        rotary_operator: ("rotary_parts", "rotary_states", "rotary_output", "rotary_backward"),
        rotary_hopper: ("rotary_hopper_sums", "rotary_hopper_values"),
        rotary_hopper_keys: ("rotary_hopper_keys",),
    }
    if GLUON:
        from arch.ops.decay_attention.triton import rotary_hopper_values_gluon

        names[rotary_hopper_values_gluon] = ("rotary_hopper_values_gluon",)
    return names


def kernel_times(case: str, trial: Trial, shape: tuple[int, ...], repeats: int) -> dict[str, float]:
    """Each kernel's median ms in a forward and backward pass, those of one name added up."""
    inputs, weight = CASES[case].inputs(*shape, dtype=torch.bfloat16, device="cuda")
    run = CASES[case].runs["triton"](*shape)
    log: list[tuple[str, Any, Any]] = []
    flush = torch.empty(1 << 28, dtype=torch.int8, device="cuda")
    sums: list[dict[str, float]] = []
    with ExitStack() as stack:
        stack.enter_context(override(**trial))
        for module, kernels in timed_kernels().items():
            for name in kernels:
                stack.enter_context(patch.object(module, name, Timed(getattr(module, name), log)))
        for index in range(repeats + 2):
            log.clear()
            torch.cuda._sleep(4_000_000)
            flush.zero_()
            gradients(run, inputs, weight)
            torch.cuda.synchronize()
            if index >= 2:
                times: dict[str, float] = {}
                for name, start, end in log:
                    times[name] = times.get(name, 0.0) + start.elapsed_time(end)
                sums.append(times)
    return {name: sorted(times[name] for times in sums)[len(sums) // 2] for name in sums[0]}


def whole_times(case: str, trial: Trial, shape: tuple[int, ...], repeats: int) -> dict[str, float]:
    """Median ms of the forward pass and of both: the kernels, what torch does around them, and what lies between."""
    inputs, weight = CASES[case].inputs(*shape, dtype=torch.bfloat16, device="cuda")
    run = CASES[case].runs["triton"](*shape)
    with override(**trial):
        with torch.no_grad():
            forward = median_ms(lambda: run(inputs), repeats)
        return {"forward": forward, "both": median_ms(lambda: gradients(run, inputs, weight), repeats)}


def _compile(job: tuple[str, Trial, tuple[int, ...]]) -> str | None:
    case, trial, shape = job
    try:
        kernel_times(case, trial, (1, 8 * trial["chunk"] * max(2, trial["segments"]), *shape[2:]), 1)
    except Exception as error:
        return f"{case} {trial}: {last_line(error)}"
    return None


def _jobs(chosen: list[str], shape: tuple[int, ...]) -> Iterator[tuple[str, Trial, tuple[int, ...]]]:
    for case in chosen:
        for trial in trials(case, shape[3]):
            yield case, trial, shape


def sweep(chosen: list[str], shape: tuple[int, ...], repeats: int, processes: int) -> list[dict[str, Any]]:
    jobs = list(_jobs(chosen, shape))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=None) as pool:
        for problem in pool.imap_unordered(_compile, jobs, chunksize=1):
            if problem:
                print(problem, flush=True)
    rows = []
    for case, trial, _ in jobs:
        row: dict[str, Any] = {"case": case}
        row |= {name: "x".join(map(str, x)) if isinstance(x, tuple) else x for name, x in trial.items()}
        try:
            times = kernel_times(case, trial, shape, repeats)
            times |= {"sum": sum(times.values())} | whole_times(case, trial, shape, repeats)
            row |= {name: round(ms, 4) for name, ms in times.items()}
        except Exception as error:
            row |= failed(f"{case} {trial}", error)
        print(row, flush=True)
        rows.append(row)
        torch.cuda.empty_cache()
    return rows


def main(arguments: list[str] | None = None) -> None:
    cases = [name for name, case in CASES.items() if "triton" in case.runs]
    parser = Parser("python -m benchmarks.tiles", __doc__)
    parser.add_argument("--only", default=",".join(cases), help="cases, comma-separated: " + ", ".join(cases))
    parser.add_argument("--shape", help="B,T,H,D (default 4,8192,8,128); several shapes are separated by spaces")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--processes", type=int, default=12, help="that compile before a sweep")
    parser.add_argument("--json", help="also write all rows to this file")
    options = parser.parse_args(arguments)
    at_least_one(options, "repeats", "processes")
    file_to_write(options.json, "--json")
    chosen, shapes = names_of(options.only, cases), shapes_of(options.shape)
    require_gpu()
    print(device(), flush=True)
    show([row for shape in shapes for row in sweep(chosen, shape, options.repeats, options.processes)], options.json)


if __name__ == "__main__":
    run(main)
