"""docs/large-models.md: what 7B and 70B need on paper."""

from __future__ import annotations

from arch.config import ModelConfig
from arch.presets import preset
from flops import count_params, train_flops_per_token, training_memory
from flops.hardware import DEVICES, FILLED
from flops.pace import MFU

from .generate import table

CONTEXT = 8192
SHAPES: dict[str, dict[str, int]] = {
    "7b": {},
    "70b": {"n_layers": 80, "d_model": 8192, "n_heads": 64, "d_ffn": 24_576},
}
GPUS = (64, 128, 256, 512, 1024)
INSIDE, BETWEEN = 355e9, 50e9  # bytes/s of a GPU; docs/large-models.md says whose
ROWS_MOST = 8


def sharded() -> str:
    """A row for each model and number of GPUs: memory at stage 3, and how long a pass computes and moves weights."""
    rows = []
    for arch in ("hgrn2", "llama"):
        for size, shape in SHAPES.items():
            config = preset(arch, "7b", context_length=CONTEXT, **shape)
            rows += [_row(f"{arch}, {size.upper()}", config, gpus) for gpus in GPUS]
    heads = ["model", "GPUs", "GB a GPU, one sequence", "recomputed", "sequences that fit 80 GB", "computing, s"]
    return table([*heads, "moving weights, s: between nodes", "inside a node"], rows)


def _row(name: str, config: ModelConfig, gpus: int) -> list[str]:
    def gigabytes(rows: int, recompute: bool) -> float:
        lines = training_memory(
            config, micro_batch_tokens=rows * CONTEXT, zero_stage=3, world_size=gpus, recompute=recompute
        )
        return lines["total"] / 1e9

    device, moved = DEVICES["h100"], 3 * 4.0 * count_params(config).total
    room = FILLED * (device.memory_bytes or 0.0) / 1e9
    rows = max((n for n in range(1, ROWS_MOST + 1) if gigabytes(n, True) <= room), default=0)
    most = f"{rows} or more" if rows == ROWS_MOST else str(rows)
    flops = rows * CONTEXT * train_flops_per_token(config, "exact", CONTEXT)
    computing = f"{flops / (MFU * device.peak_flops_per_s):.2f}" if rows else "-"
    memory = [f"{gigabytes(1, recompute):.1f}" for recompute in (False, True)]
    return [name, str(gpus), *memory, most, computing, f"{moved / BETWEEN:.2f}", f"{moved / INSIDE:.2f}"]
