"""Trains in segments, each by processes of its own: `python -m tests.scaling.trainer.segments FOLDER JSON`.

JSON: [[number of processes, ZeRO stage, last step], ..]; a segment continues from the state of
the one before in FOLDER.
Prints loss and gradient norm of every step, and the weight decay of every group of the optimizer, as JSON.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from arch.model.lm import build_model
from arch.presets import preset
from scaling.rundir.launcher import Ranks
from scaling.trainer import engine, state

from .test_engine_parity import CONTEXT, CPU, ROWS, batches, training

RATE = 3e-3


class Engine(engine.Engine):
    """At stage 3 every weight is cut up, however small, and gathered where it is used."""

    def _config(self, *arguments: Any) -> dict[str, Any]:
        config = super()._config(*arguments)
        config["zero_optimization"]["stage3_param_persistence_threshold"] = 0
        return config


def make_engine(stage: int, ranks: Ranks, d_model: int = 18) -> Engine:
    """A model of which the sizes of 12 in 20 parameters are no multiples of 4; a clip that never acts (its factor is
    rounded otherwise by ZeRO)."""
    shape = {"d_model": d_model, "n_heads": 3, "d_ffn": 45, "vocab_size": 259}
    model = build_model(preset("llama", "14k", context_length=CONTEXT, chunk_size=16, **shape), seed=0)
    return Engine(model, training(lr=RATE, grad_clip=1e3, weight_decay=0.1, zero_stage=stage), ROWS, CPU, ranks)


def train(steps: Any, trained: engine.Engine) -> list[tuple[float, float]]:
    rows = []
    for tokens in steps:
        loss, norm = trained.step(tokens[trained.rows], RATE)
        rows.append((float(trained.mean(loss.clone())), float(norm)))
    return rows


def segment(rank: int, world: int, stage: int, first: int, last: int, folder: Path, results: Any) -> None:
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = str(rank)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store{first}", rank=rank, world_size=world)
    trained = make_engine(stage, Ranks(rank, world, rank))
    if first:
        state.load_state(trained, folder, first)
    rows = train(batches()[first:last], trained)
    state.save_state(trained, folder, last, {"spec_hash": "x"}, keep=9)
    assert "torch._dynamo" not in sys.modules, "DeepSpeed imports torch's compiler, for seconds of every process"
    results.put((rank, rows, [group["weight_decay"] for group in trained.optimizer.param_groups]))


def main(folder: Path, segments: list[list[int]]) -> None:
    engine.load_deepspeed("cpu")  # once, for all of them
    forks, first = multiprocessing.get_context("fork"), 0
    rows: list[Any] = []
    decays: list[Any] = []
    for world, stage, last in segments:
        results = forks.Queue()
        processes = [
            forks.Process(target=segment, args=(rank, world, stage, first, last, folder, results))
            for rank in range(world)
        ]
        for process in processes:
            process.start()
        _, of_first, decay = min(results.get(timeout=300) for _ in processes)
        for process in processes:
            process.join()
        rows, first = rows + of_first, last
        decays.append(decay)
    print(json.dumps({"rows": rows, "weight_decay": decays}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
