"""The same steps by plain PyTorch and by the engine, in as many processes as the environment says. As a program: those
of CASES, both ways; the first process prints the numbers as JSON."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist

from arch.config import ModelConfig, patterned
from arch.model import lm
from arch.model.lm import LanguageModel, build_model
from arch.ops.fused import embedding, linear
from arch.presets import preset
from scaling.study.schedule import learning_rate
from scaling.study.training import Training
from scaling.trainer import engine as engine_module
from scaling.trainer.engine import Engine, start_distributed
from scaling.trainer.optimizers import AdamW

ROWS, CONTEXT, STEPS = 4, 64, 30
SHORT = 32  # the context of mixed_model
SHORT_STEPS = 20
# precision, whether the head is tied, ZeRO stages: whatever the precision, gradients and states are fp32
CASES = [("fp32", True, (0, 1, 2, 3)), ("bf16", False, (0, 3))]
CPU = torch.device("cpu")
Steps = list[tuple[float, float]]  # loss, mean over processes, and gradient norm


def training(**changes: object) -> Training:
    settings = {"lr": 3e-3, "warmup_tokens": 10 * ROWS * CONTEXT, "batch_tokens": ROWS * CONTEXT, "grad_clip": 0.5}
    return Training(**(settings | changes))


def short(**changes: object) -> Training:
    """Of mixed_model; the clip never acts."""
    sizes = {"warmup_tokens": 10 * ROWS * SHORT, "batch_tokens": ROWS * SHORT, "grad_clip": 1e3}
    return training(**(sizes | changes))


def small_model(arch: str) -> LanguageModel:
    return build_model(preset(arch, "14k", context_length=CONTEXT, chunk_size=16), seed=0)


def mixed_model(tie: bool) -> LanguageModel:
    """A layer each of softmax attention, of HGRN2, whose bounds all layers share, and of a delta rule."""

    def layers_of(kind: str, n_layers: int) -> ModelConfig:
        shape = {"n_layers": n_layers, "context_length": SHORT, "chunk_size": SHORT, "tie_embeddings": tie}
        return preset(kind, "14k", **shape)

    return build_model(patterned("mixed", ("llama", "hgrn2", "gated_deltanet"), 3, layers_of), seed=0)


def batches(context: int = CONTEXT) -> torch.Tensor:
    """[STEPS, ROWS, context + 1] of tokens with some structure, so that the loss falls."""
    generator = np.random.default_rng(0)
    start = generator.integers(0, 257, (STEPS, ROWS, 1))
    return torch.from_numpy((start + np.arange(context + 1) * generator.integers(1, 4, (STEPS, ROWS, 1))) % 257)


def plain_loop(
    model: LanguageModel, settings: Training, steps: int = STEPS, kind: type[torch.optim.AdamW] = torch.optim.AdamW
) -> Steps:
    """In plain PyTorch, data parallel, nothing of the engine."""
    exempt, parameters = model.no_weight_decay(), dict(model.named_parameters())
    decayed = {"params": [p for n, p in parameters.items() if n not in exempt], "weight_decay": settings.weight_decay}
    free = {"params": [p for n, p in parameters.items() if n in exempt], "weight_decay": 0.0}
    groups = [decayed, free] if exempt else [decayed]
    optimizer = kind(groups, betas=tuple(settings.betas), eps=settings.eps, fused=True)
    ranks, losses = start_distributed("cpu"), []
    for i, tokens in enumerate(batches(model.model_config.context_length)[:steps], start=1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(i, settings)
        tokens = tokens.chunk(ranks.world)[ranks.rank]
        with torch.autocast("cpu", torch.bfloat16, enabled=settings.precision == "bf16"):
            loss = model(input_ids=tokens[:, :-1], targets=tokens[:, 1:], loss_only=True).loss
        assert loss is not None
        loss.backward()
        for tensor in (loss.detach(), *(p.grad for p in parameters.values() if p.grad is not None)):
            dist.all_reduce(tensor)
            tensor /= ranks.world
        norm = torch.nn.utils.clip_grad_norm_(parameters.values(), settings.grad_clip)
        optimizer.step()
        model.zero_grad()
        losses.append((loss.item(), norm.item()))
    return losses


def engine_loop(model: LanguageModel, settings: Training, steps: int = STEPS) -> Steps:
    engine, losses = Engine(model, settings, ROWS, CPU, start_distributed("cpu")), []
    for i, tokens in enumerate(batches(model.model_config.context_length)[:steps], start=1):
        loss, norm = engine.step(tokens[engine.rows], learning_rate(i, settings))
        losses.append((engine.mean(loss).item(), float(norm)))
    return losses


@contextlib.contextmanager
def fused_nodes() -> Iterator[None]:
    """The nodes that read weights outside of their modules run on a CPU, too."""
    with contextlib.ExitStack() as stack:
        for module, name in ((linear, "uses_kernels"), (embedding, "uses_kernels"), (lm, "makes_parts")):
            stack.enter_context(mock.patch.object(module, name, lambda x: True))
        stack.enter_context(mock.patch.object(engine_module, "PERSISTENT", 0))
        yield


def main() -> None:
    from tests.arch.ops.quick_interpreter import quick_interpreter  # needs Triton

    torch.set_num_threads(1)
    ranks, results = start_distributed("cpu"), []
    with quick_interpreter(), fused_nodes():
        for precision, tie, stages in CASES:
            # by the same AdamW (test_stepper.py) without torch's compiler, which would take each process seconds
            plain = plain_loop(mixed_model(tie), short(precision=precision), SHORT_STEPS, AdamW)
            for stage in stages:
                settings = short(precision=precision, zero_stage=stage)
                results.append((precision, stage, plain, engine_loop(mixed_model(tie), settings, SHORT_STEPS)))
    if not ranks.rank:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
