"""One model trained from scratch on recall: plain AdamW, one recipe for all architectures."""

from __future__ import annotations

import math
import time

import torch

from arch.model.lm import LanguageModel, build_model
from data.synthetic import NOT_SCORED, mqar_batch
from scaling.trainer.optimizers import AdamW

from .recipe import Problem, Run, Sweep, Trial

HELD_OUT_SEED = 10**6
BETAS, GRAD_CLIP = (0.9, 0.95), 1.0


def train(
    sweep: Sweep, arch: str, problem: Problem, width: int, trial: Trial, seed: int, *,
    device: str = "cpu",
) -> Run:  # fmt: skip
    """Train one cell: a new batch each step, the trial's rate after a linear warm-up, then a cosine to 0 at the last
    step. On a GPU the forward pass is under bf16
    autocast, on a CPU in fp32."""
    start, whole = time.perf_counter(), sweep.steps_of(arch)
    rate = trial.rate
    model = build_model(sweep.config(arch, problem, width, trial.ratio), seed).to(device)
    kept, parameters = model.no_weight_decay(), dict(model.named_parameters())
    groups = [
        {"params": [p for name, p in parameters.items() if name not in kept], "weight_decay": sweep.weight_decay},
        {"params": [p for name, p in parameters.items() if name in kept], "weight_decay": 0.0},
    ]
    optimizer = AdamW(groups, lr=rate, betas=BETAS)
    curve: list[tuple[int, float]] = []
    for step in range(1, whole + 1):
        progress = max(0.0, (step - sweep.warm_up_steps) / (whole - sweep.warm_up_steps))
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, step / sweep.warm_up_steps) * (1 + math.cos(math.pi * progress)) / 2
        inputs, targets = _batch(sweep, problem, seed, step, sweep.rows, device)
        with torch.autocast(device.split(":")[0], torch.bfloat16, enabled=device != "cpu"):
            loss = model(input_ids=inputs, targets=targets).loss
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), GRAD_CLIP)
        optimizer.step()
        if step % sweep.every == 0 or step == whole:
            curve.append((step, accuracy(model, sweep, problem, device)))
            if curve[-1][1] >= sweep.done:
                break
    return Run(rate, seed, tuple(curve), time.perf_counter() - start, trial.ratio)


@torch.no_grad()
def accuracy(model: LanguageModel, sweep: Sweep, problem: Problem, device: str = "cpu") -> float:
    """Share of the held-out queries answered with their key's value."""
    right = asked = 0
    for start in range(0, sweep.held_out_rows, 256):
        rows = slice(start, min(start + 256, sweep.held_out_rows))
        inputs, targets = _batch(sweep, problem, HELD_OUT_SEED, 0, sweep.held_out_rows, device, rows)
        with torch.autocast(device.split(":")[0], torch.bfloat16, enabled=device != "cpu"):
            answers = model(input_ids=inputs).logits.argmax(-1)
        scored = targets != NOT_SCORED
        right += int((answers[scored] == targets[scored]).sum())
        asked += int(scored.sum())
    return right / asked


def _batch(
    sweep: Sweep, problem: Problem, seed: int, step: int, rows: int, device: str, part: slice | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets, int64 [rows, length] each."""
    inputs, targets = mqar_batch(seed, step, rows, problem.length, problem.pairs, sweep.vocab_size, part=part)
    return torch.from_numpy(inputs).to(device), torch.from_numpy(targets).to(device)
