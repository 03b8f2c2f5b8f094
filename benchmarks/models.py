"""Whole training steps of our models beside other packages' models of the same shape, on one GPU.

    python -m benchmarks.models --model llama,hgrn2 --size 4x128,8x256 --vocab-size 257 --peers all
    python -m benchmarks.models --model hgrn2-3to1 --study hybrids --peers fla-hgrn2-3to1

Options and figures are those of `python -m arch.bench --model`; --study names hybrids. A peer has the shape of the
first architecture, and is timed as its users run it, without a graph. model_peers.py says what each peer is.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch

from arch.arguments import run
from arch.bench import whole_model
from arch.bench.steps import Training
from arch.config import ModelConfig
from arch.errors import InputError
from scaling.study.file import register_architectures

from .model_peers import PEERS, make_peer


def cases(options: argparse.Namespace) -> Iterator[tuple[str, str, ModelConfig]]:
    """(model, size, its shape): ours of a size and a vocabulary, then the peers. Raises InputError."""
    peers = list(PEERS) if options.peers == "all" else options.peers.split(",")
    for name in peers:
        if name not in PEERS:
            raise InputError(f"--peers {name}: unknown (valid: all, {', '.join(PEERS)})")
    ours, n_archs = list(whole_model.cases(options)), len(options.model.split(","))
    for first in range(0, len(ours), n_archs):
        yield from ours[first : first + n_archs]
        yield from ((name, *ours[first][1:]) for name in peers)


def make(model: str, config: ModelConfig, options: argparse.Namespace) -> Training:
    """One of ours or of PEERS with random weights, on the GPU."""
    if model not in PEERS:
        return whole_model.make(model, config, options)
    generator = torch.Generator("cuda").manual_seed(0)
    return Training(*make_peer(model, config), whole_model.random_tokens(config, options.batch, generator))


def parser() -> argparse.ArgumentParser:
    reader = whole_model.parser("python -m benchmarks.models", __doc__)
    reader.add_argument("--study", help="a study file: its hybrids and plugins have names here too")
    reader.add_argument(
        "--peers", default="all", help="other packages' models, comma-separated, or all: " + ", ".join(PEERS)
    )
    return reader


def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    register_architectures([], options.study)
    chosen = list(cases(options))
    whole_model.check(options)
    whole_model.measure_all(options, chosen, make, without_graphs=PEERS)


if __name__ == "__main__":
    run(main)
