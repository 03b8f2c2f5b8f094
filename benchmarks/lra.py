"""HGRN's speed table (its table 15): training and inference steps a second at 1K to 5K tokens, every architecture.

    python -m benchmarks.lra                       on a GPU if there is one
    python -m benchmarks.lra --only hgrn1,llama --batch 4 --json lra.json

The paper gives neither sizes nor batch. Here: a small model of the kind used for Long Range Arena's text task, four
layers of width 256 with four heads and an MLP of 1024, on bytes, one row a step unless --batch says otherwise.
A training step is forward, backward and AdamW of the causal language model, an inference step its forward pass; bf16
autocast on a GPU, fp32 elsewhere. "-": out of memory. Speeds of different machines do not compare: the peer is the
LLaMA row beside them.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from arch.arguments import Parser, at_least_one, file_to_write, run
from arch.bench.command import names_of
from arch.config import ARCHS
from arch.model.lm import LanguageModel, build_model
from arch.presets import preset
from arch.tables import text_table

LENGTHS = (1024, 2048, 3072, 4096, 5120)
SHAPE: dict[str, int] = {"d_model": 256, "n_layers": 4, "n_heads": 4, "d_ffn": 1024, "vocab_size": 257}
WARM, TIMED = 3, 10


def steps_per_s(step: Callable[[], Any], device: str, timed: int = TIMED) -> float:
    """Median over `timed` steps, after WARM that compile and allocate."""
    seconds = []
    for index in range(WARM + timed):
        begin = time.perf_counter()
        step()
        if device != "cpu":
            torch.cuda.synchronize()
        if index >= WARM:
            seconds.append(time.perf_counter() - begin)
    return 1 / statistics.median(seconds)


def speeds(
    arch: str, length: int, batch: int, device: str, backend: str | None = None, timed: int = TIMED
) -> tuple[float, float]:
    """Training and inference steps a second of one architecture at one length."""
    model = build_model(preset(arch, "98k", **SHAPE, context_length=length), seed=0).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device != "cpu")
    ids = torch.randint(0, SHAPE["vocab_size"], (batch, length + 1), device=device)

    def train() -> None:
        _loss(model, ids, device, backend).backward()
        optimizer.step()
        optimizer.zero_grad()

    @torch.inference_mode()
    def infer() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=device != "cpu"):
            model(input_ids=ids[:, :-1], backend=backend)

    return steps_per_s(train, device, timed), steps_per_s(infer, device, timed)


def _loss(model: LanguageModel, ids: torch.Tensor, device: str, backend: str | None) -> torch.Tensor:
    with torch.autocast(device, torch.bfloat16, enabled=device != "cpu"):
        loss = model(input_ids=ids[:, :-1].contiguous(), targets=ids[:, 1:].contiguous(), backend=backend).loss
    assert loss is not None
    return loss


def lra(
    archs: tuple[str, ...] = ARCHS, batch: int = 1, backend: str | None = None, lengths: tuple[int, ...] = LENGTHS,
    timed: int = TIMED,
) -> list[dict[str, Any]]:  # fmt: skip
    """A record an architecture and length: train_steps_per_s and infer_steps_per_s, None where memory did not do."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = []
    for arch in archs:
        for length in lengths:
            train: float | None
            infer: float | None
            try:
                train, infer = speeds(arch, length, batch, device, backend, timed)
            except torch.OutOfMemoryError:
                train = infer = None
                torch.cuda.empty_cache()
            row = {"arch": arch, "length": length, "batch": batch, "device": device}
            rows.append(row | {"train_steps_per_s": train, "infer_steps_per_s": infer})
            print(f"{arch} {length}: {_cell(train)} {_cell(infer)}", flush=True)
    return rows


def show(rows: list[dict[str, Any]]) -> str:
    """The paper's layout: a line an architecture, training then inference, by length."""
    lengths = list(dict.fromkeys(row["length"] for row in rows))
    heads = ["", *(f"{kind} {length // 1024}K" for kind in ("train", "infer") for length in lengths)]
    lines = []
    for arch in dict.fromkeys(row["arch"] for row in rows):
        mine = {row["length"]: row for row in rows if row["arch"] == arch}
        kinds = ("train_steps_per_s", "infer_steps_per_s")
        lines.append([arch, *(_cell(mine[length][kind]) for kind in kinds for length in lengths)])
    return text_table(heads, lines)


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def main(arguments: list[str] | None = None) -> None:
    parser = Parser("python -m benchmarks.lra", __doc__)
    parser.add_argument("--only", default=",".join(ARCHS), help="architectures, comma-separated: " + ", ".join(ARCHS))
    parser.add_argument("--batch", type=int, default=1, help="rows of a step")
    parser.add_argument("--json", help="also write all rows to this file")
    options = parser.parse_args(arguments)
    at_least_one(options, "batch")
    file_to_write(options.json, "--json")
    rows = lra(tuple(names_of(options.only, ARCHS)), options.batch)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    print(show(rows))


if __name__ == "__main__":
    run(main)
