"""Whether the kernels of a model compute on this very GPU what they should: checked before its first run, once.

A kernel that is right on one GPU, driver and compiler can be wrong on another, and a loss that is a little too high
does not show it. So the first process that trains a model here makes one forward and backward pass of two of its layers
three ways: by the kernels, by PyTorch's own operations with the same roundings, and by those in float64. What was right
is noted beside Triton's kernels, for this model, GPU, versions and source.
"""

from __future__ import annotations

import gc
import hashlib
import json
import time
from contextlib import nullcontext
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import arch
from arch.config import ModelConfig
from arch.errors import InputError
from arch.kernel_config import SUM_NORM_ROWS, sum_norm_stages
from arch.model.lm import build_model
from arch.ops.common import SWITCH, device_obstacle, without_kernels
from data.files import write_json

ALIGNED = 16  # Triton compiles separately for multiples of this number, for 1, and for other numbers
LAYERS, LENGTHS = 2, (1024, 256)  # of the pass; the shorter one where the longer needs more memory than there is
# Wrong from so many times the error of the same roundings on, and from so much of a gradient's norm on: kernels that
# sum in another order stay below, what reads or sums wrong numbers is off by far more.
TIMES, LEAST = 3.0, 0.03
FEW = 256  # numbers: gradients of fewer are sums that cancel (of Mamba2's heads: off by 0.3 where kernels are right)
EPS = 1.0  # of the norms: with a run's own, rows near zero make roundings a large share of a gradient


def rows_like(micro_rows: int, positions: int, d_model: int) -> int:
    """The fewest rows that use the same kernels as `micro_rows`, including products with a norm, which need many
    positions. positions: that layers read of a row."""
    aligned = micro_rows % ALIGNED == 0
    least = ALIGNED if aligned else min(micro_rows, 2)
    if sum_norm_stages(d_model) is None or micro_rows * positions < SUM_NORM_ROWS:
        return least
    enough = max(least, -(-SUM_NORM_ROWS // positions))
    if aligned:
        return -(-enough // ALIGNED) * ALIGNED
    return enough if enough % ALIGNED else enough + 1


def check_kernels(
    config: ModelConfig, device: torch.device, *, bf16: bool, micro_rows: int, resets: bool = False
) -> str | None:
    """Hold the kernels of `config`'s layers against PyTorch's own operations; a line for the log, or None where no
    kernel runs or they were checked before. bf16, micro_rows, resets: as the run trains (autocast; sequences of a pass;
    documents read apart). Raises InputError where the loss or a gradient is wrong."""
    if device.type != "cuda" or device_obstacle(device) is not None:
        return None
    begin = time.perf_counter()
    config = config.shortened(LAYERS).replace(norm_eps=EPS)
    note = _place(config, device, bf16, micro_rows, resets)
    if note.exists():
        return None
    for length in LENGTHS:
        try:
            of_row = min(length, config.context_length) if config.encoder is None else config.context_length
            rows = _compare(config, device, bf16, micro_rows, of_row, resets)
            break
        except torch.OutOfMemoryError:
            continue
        finally:
            gc.collect()
            torch.cuda.empty_cache()
    else:
        return "kernels not checked on this GPU: a float64 pass of two layers does not fit its memory"
    worst = max(rows, key=lambda row: row["share"])
    if not worst["share"] <= 1:
        raise InputError(
            f"the kernels of {config.arch} compute wrong numbers on this {torch.cuda.get_device_name(device)}: "
            f"{worst['tensor']} is off by {worst['error']:.1e} of its norm, where rounding explains "
            f"{worst['rounding']:.1e}; `python -m arch.bench --check` shows which kernel, {SWITCH}=off trains without"
        )
    note.parent.mkdir(parents=True, exist_ok=True)
    write_json(note, worst)
    return (
        f"kernels checked on this GPU in {time.perf_counter() - begin:.1f} s: {worst['tensor']} is furthest off, by "
        f"{worst['error']:.1e} (rounding {worst['rounding']:.1e})"
    )


def _compare(
    config: ModelConfig, device: torch.device, bf16: bool, micro_rows: int, length: int, resets: bool
) -> list[dict[str, Any]]:
    """A row for the loss and the gradient of each parameter but the smallest: relative error of the kernels and of the
    same roundings, and the share of what is allowed."""
    generator = torch.Generator().manual_seed(0)
    rows = rows_like(micro_rows, config.positions(length), config.d_model)
    ids = torch.randint(config.vocab_size, (rows, length + 1), generator=generator).to(device)
    ids[:, -1] %= config.n_outputs
    model = build_model(config, 0).to(device).train()
    model.decoder.document_start_id = int(ids[0, length // 2]) if resets else None

    def passes(rounded: bool) -> list[Tensor]:
        autocast = torch.autocast(device.type, torch.bfloat16) if rounded and bf16 else nullcontext()
        with autocast:
            loss = model(input_ids=ids[:, :-1], targets=ids[:, 1:], loss_only=True).loss
        return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)]

    kernels = passes(rounded=True)
    with without_kernels():
        rounded = passes(rounded=True)
        model = model.double()
        exact = passes(rounded=False)
    names = ["the loss", *(f"the gradient of {name}" for name, _ in model.named_parameters())]
    errors = []
    for name, *values in zip(names, kernels, rounded, exact, strict=True):
        if name != names[0] and values[0].numel() < FEW:
            continue
        error, rounding = (_relative(value, values[2]) for value in values[:2])
        allowed = max(TIMES * rounding, LEAST)
        share = error / allowed if error == error else float("inf")
        errors.append({"tensor": name, "error": error, "rounding": rounding, "share": share})
    return errors


def _relative(value: Tensor, exact: Tensor) -> float:
    return ((value.double() - exact).norm() / exact.norm().clamp(min=1e-30)).item()


def _place(config: ModelConfig, device: torch.device, *how: object) -> Path:
    """Of the note that the kernels were right for this model, GPU, versions and source."""
    import triton

    from arch.ops.triton import assembler

    on = [torch.cuda.get_device_name(device), torch.__version__, assembler.described(), _source()]
    key = json.dumps([asdict(config), *on, *map(str, how)], sort_keys=True, default=str)
    return Path(triton.knobs.cache.dir) / "checked-models" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


@cache
def _source() -> str:
    """The digest of all source that a model's numbers depend on."""
    digest = hashlib.sha256()
    for path in sorted(Path(arch.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
