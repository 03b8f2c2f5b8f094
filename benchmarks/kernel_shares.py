"""What each fused kernel saves of a training step on one GPU: the step as a graph with it and without it.

    python -m benchmarks.kernel_shares --model llama,tnl,hgrn2,cosformer2 --size 2x128,8x256 --vocab-size 257 \
        --batch 32 --context-length 2048

Options are those of `python -m arch.bench --model`. A kernel's share is (time without it - time with it) / time without
it. Kernels that stand on another go with it: without joint products there is no silu inside them. The sequence
operations are not in the table: `python -m arch.bench` holds them against the chunk backend.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from arch.arguments import run
from arch.bench import whole_model
from arch.bench.measure import device
from arch.config import ModelConfig
from arch.tables import rows_table

POINTWISE = "arch.ops.fused.pointwise"
# what is replaced in which module while a kernel is off; where a function is named, the switch is off for it alone
KERNELS: dict[str, tuple[str, str, str | None]] = {
    "joint linear nodes, and all below": ("arch.ops.fused.linear", "uses_kernels", "weights_of"),
    "gate inside the MLP's products": ("arch.ops.fused.gated_mlp", "hopper_products", None),
    "sums and norms inside products": ("arch.model.layers", "takes_layer_end", None),
    "silu inside the projections": ("arch.ops.fused.linear", "_takes_silu", None),
    "projections as one product": ("arch.ops.fused.linear", "casts", "fused_linear"),
    "weights cast by one launch": ("arch.model.decoder", "uses_kernels", None),
    "norms": ("arch.model.norms", "uses_kernels", None),
    "rotary embedding": ("arch.model.positions", "uses_kernels", None),
    "loss": ("arch.ops.fused.cross_entropy", "uses_kernels", None),
    "embedding's gradient": ("arch.ops.fused.embedding", "uses_kernels", None),
    "gated products": (POINTWISE, "uses_kernels", "gated_product"),
    "columns of one projection": ("arch.ops.fused.linear", "uses_kernels", "columns"),
    "softplus of dt": (POINTWISE, "uses_kernels", "softplus"),
    "values times dt": (POINTWISE, "uses_kernels", "scaled"),
    "skip, gate and norm": (POINTWISE, "uses_kernels", "skip_gated"),
    "short convolution": ("arch.architectures.common.ssm", "uses_kernels", None),
    "all kernels in Gluon": ("arch.ops.triton.device_config", "GLUON", None),
}


@contextmanager
def without(kernel: str) -> Iterator[list[int]]:
    """Inside, the kernel is off; the list counts how often it was asked for."""
    module_name, name, caller = KERNELS[kernel]
    module = importlib.import_module(module_name)
    original: Any = getattr(module, name)
    asked: list[int] = []
    replacement: Any = False

    def off(*args: Any, **keywords: Any) -> Any:
        if caller is not None and sys._getframe(1).f_code.co_name != caller:
            return original(*args, **keywords)
        asked.append(1)
        return False

    if callable(original):
        replacement = off
    else:
        asked.append(1)
    setattr(module, name, replacement)
    try:
        yield asked
    finally:
        setattr(module, name, original)


def shares(model: str, size: str, config: ModelConfig, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each kernel that the model asks for."""

    def milliseconds(**named: Any) -> float | str:
        row = whole_model.measure_one(model, config, options, whole_model.make)
        return row.get("graph_ms", row.get("error", "failed"))

    rows = []
    before = milliseconds()
    for kernel in KERNELS:
        with without(kernel) as asked:
            off = milliseconds()
        if not asked:
            continue
        row: dict[str, Any] = {"model": model, "size": size, "kernel": kernel, "with ms": before, "without ms": off}
        if not (isinstance(before, str) or isinstance(off, str)):
            row["share"] = f"{(off - before) / off:.1%}"
        rows.append(row)
        print(row, flush=True)
    rows.append({"model": model, "size": size, "kernel": "(again, all on)", "with ms": milliseconds()})
    return rows


def main(arguments: list[str] | None = None) -> None:
    options = whole_model.parser("python -m benchmarks.kernel_shares", __doc__).parse_args(arguments)
    chosen = list(whole_model.cases(options))
    whole_model.check(options)
    print(device(), flush=True)
    rows = [row for case in chosen for row in shares(*case, options)]
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    print(rows_table(rows))


if __name__ == "__main__":
    run(main)
