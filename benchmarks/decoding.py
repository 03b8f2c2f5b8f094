"""Time and state of one decode step against the tokens read before: constant without softmax attention.

    python -m benchmarks.decoding --size 98k                       all architectures, 1k to 64k tokens
    python -m benchmarks.decoding --archs llama,hgrn2 --size 410m --device cuda --bf16 --graph

Weights are random, which changes no time. The context is read once, in pieces, and at each length the next token is
read many times from the same state; the fastest time counts, since other processes only add to it. A GPU finishes a
step of one token long before the host has launched its kernels, so --graph records the launches once and times their
replay. Prints a line a length.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from arch.arguments import Parser, at_least_one, run, whole_numbers
from arch.config import ARCHS
from arch.errors import InputError
from arch.model.lm import LanguageModel, build_model
from arch.presets import preset

LENGTHS = tuple(1024 * 2**k for k in range(7))
PIECE = 1024  # tokens read at once
REPEATS = 200


@dataclass(frozen=True)
class DecodeStep:
    """A decode step after n_tokens were read: the least time that it took, and the bytes of a row's state."""

    n_tokens: int
    step_ms: float
    state_bytes: int


def decode_steps(
    model: LanguageModel, lengths: Sequence[int], batch: int = 1, autocast: bool = False, graph: bool = False
) -> Iterator[DecodeStep]:
    """A step for each length (ascending, tokens), of `batch` rows at once. The model is on its device, in evaluation
    mode. graph: time a CUDA graph of the step, so without the host's time."""
    device = model.lm_head.weight.device
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.model_config.vocab_size, (batch, lengths[-1] + 1), generator=generator).to(device)
    cache, n_read = None, 0
    with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=autocast):
        for length in lengths:
            while n_read < length:
                piece = ids[:, n_read : min(n_read + PIECE, length)]
                cache = model(piece, cache=cache, use_cache=True, logits_to_keep=1).cache
                n_read += piece.shape[1]
            assert cache is not None
            step = partial(model, ids[:, length : length + 1], cache=cache, use_cache=True, backend="naive")
            least_ms = _least_ms(_recorded(step) if graph else step, device)
            yield DecodeStep(length, least_ms, cache.n_bytes // batch)


def _recorded(step: Callable[[], Any]) -> Callable[[], Any]:
    """A function that replays the kernels that step() launches."""
    step()  # what compiles or is made once is made outside of the record
    record = torch.cuda.CUDAGraph()
    with torch.cuda.graph(record):
        step()
    return record.replay


def _least_ms(step: Callable[[], Any], device: torch.device) -> float:
    wait = partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None
    times = []
    for _ in range(REPEATS):
        wait()
        start = time.perf_counter()
        step()
        wait()
        times.append(1e3 * (time.perf_counter() - start))
    return min(times)


def main(arguments: list[str] | None = None) -> None:
    parser = Parser("python -m benchmarks.decoding", __doc__)
    parser.add_argument("--archs", default=",".join(ARCHS), help="default: all")
    parser.add_argument("--size", default="98k")
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)), help="tokens read before, ascending")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bf16", action="store_true", help="autocast, as a bf16 run is evaluated")
    parser.add_argument("--graph", action="store_true", help="without the host's time: a CUDA graph of the step")
    asked = parser.parse_args(arguments)
    at_least_one(asked, "batch")
    lengths = sorted(set(whole_numbers(asked.lengths, "--lengths")))
    configs = [preset(arch, asked.size, context_length=lengths[-1]) for arch in asked.archs.split(",")]
    try:
        torch.empty(1, device=asked.device)
    except (RuntimeError, AssertionError):
        raise InputError(f"--device {asked.device}: PyTorch finds no such device; cpu always works") from None
    if asked.graph and not asked.device.startswith("cuda"):
        raise InputError(f"--graph: {asked.device} has no CUDA graphs; give --device cuda, or leave it out")
    for config in configs:
        model = build_model(config).to(asked.device).eval()
        for step in decode_steps(model, lengths, asked.batch, asked.bf16, asked.graph):
            print(f"{config.arch}: {step.n_tokens:,} tokens: {step.step_ms:.3f} ms, state {step.state_bytes:,} bytes")


if __name__ == "__main__":
    run(main)
