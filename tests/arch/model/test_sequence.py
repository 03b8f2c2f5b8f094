"""Rows in parts: logits, loss and gradients are those of whole rows in one process."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from arch.architectures.llama.mixer import LlamaMixer
from arch.config import ARCHS, ModelConfig
from arch.errors import InputError
from arch.model.cache import LayerCache
from arch.model.lm import LanguageModel, build_model
from arch.model.mixer import Stream
from arch.model.sequence import SequenceGroup
from arch.presets import preset
from arch.registry import register, register_pattern
from flops import training_memory
from tests.flops.kept import kept_bytes

PROCESSES = (pytest.param(2, marks=pytest.mark.slow), 4)
LENGTH, EOT = 48, 3
KEPT, ROWS = ("llama", "mamba2", "gated_deltanet"), 2
TOLERANCE = 1e-11  # of the largest number, fp64
PATTERNS = {"mixed": ("mamba2", "llama", "hgrn2"), "windowed": ("transformer", "gated_deltanet", "lru")}
OWN: dict[str, dict[str, Any]] = {"transformer": {"n_kv_heads": 4, "window": 9}}


@dataclass(frozen=True)
class Case:
    """A model, and how it reads: documents apart, a share of its layers computed again, some tokens no targets."""

    arch: str
    documents: bool = False
    recompute: float = 0.0
    masked: bool = False

    def __str__(self) -> str:
        return "-".join(map(str, astuple(self)))

    def model(self) -> LanguageModel:
        model = build_model(config_of(self.arch), 0).double().train()
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():  # zeros and ones too
                parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
        model.decoder.gradient_checkpointing = self.recompute
        model.decoder.document_start_id = EOT if self.documents else None
        return model

    def read_by(self, model: LanguageModel) -> dict[str, Tensor]:
        """This process's logits, its loss and the parameters' gradients."""
        tokens = torch.randint(EOT + 1, 67, (2, LENGTH + 1), generator=torch.Generator().manual_seed(2))
        for row, places in enumerate([[5, 12, 13, 24], [36, 37]]):  # parts of 12 and 24 tokens begin with some
            tokens[row, places] = EOT
        targets = tokens[:, 1:].clone()
        targets[0, : 20 if self.masked else 0] = -100
        output = model(tokens[:, :-1], targets)
        assert output.loss is not None
        output.loss.backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        return {"logits": output.logits.detach(), "loss": output.loss.detach()} | gradients


CASES = [Case(arch, documents=True) for arch in (*ARCHS, *PATTERNS)]
CASES += [Case(arch) for arch in ("llama", "hgrn2", "mamba2", "gated_deltanet", "lru", "cosformer2", *PATTERNS)]
CASES += [Case(arch, recompute=0.5, masked=True) for arch in ("hgrn2", *PATTERNS)]


def config_of(arch: str) -> ModelConfig:
    shape = {"n_heads": 4, "context_length": LENGTH, "chunk_size": 16, "vocab_size": 67}
    if arch not in PATTERNS:
        return preset(arch, "14k", **shape | OWN.get(arch, {}))
    register_pattern(arch, PATTERNS[arch], {kind: OWN[kind] for kind in PATTERNS[arch] if kind in OWN})
    return preset(arch, "6k", n_layers=6, **shape)


def wide(arch: str) -> ModelConfig:
    return preset(arch, "55k", n_heads=4, context_length=1024, chunk_size=16, vocab_size=67)


@pytest.fixture(scope="module", params=PROCESSES)
def read(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder, size = tmp_path_factory.mktemp("read"), request.param
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # imported once for all of them
    given = [(rank, size, folder) for rank in range(size)]
    processes = [context.Process(target=read_in_parts, args=arguments, daemon=True) for arguments in given]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0] * size
    results: dict[str, Any] = torch.load(folder / "all.pt")
    return results


@pytest.mark.parametrize("case", CASES, ids=str)
def test_parts_are_read_as_whole_rows(case: Case, read: dict[str, Any]) -> None:
    expected = case.read_by(case.model())
    assert read[str(case)].keys() == expected.keys()
    for name, tensor in expected.items():
        off = (read[str(case)][name] - tensor).abs().max() / tensor.abs().max()
        assert off < TOLERANCE, name


@pytest.mark.parametrize("arch", KEPT)
def test_the_memory_model_counts_what_autograd_keeps_of_a_part(arch: str, read: dict[str, Any]) -> None:
    config, size = wide(arch), read["processes"]
    with_head = {"micro_batch_tokens": ROWS * config.context_length, "precision": "fp32", "kernels": False}
    counted = training_memory(config, world_size=size, sequence_processes=size, **with_head)
    assert read["kept"][arch] == pytest.approx(counted["activations"] + counted["logits"], rel=0.01)


def test_what_is_not_read_in_parts_is_refused_in_one_line(read: dict[str, Any]) -> None:
    length, decoding, without_gradient, alone = read["refused"]
    assert length == f"rows of 47 tokens do not split into {read['processes']} equal parts"
    assert decoding == "rows in parts are not decoded: Decoder.split(None) first"
    assert without_gradient == "a layer's state has no gradient: it cannot read rows in parts"
    assert alone == "architecture 'alone': its layers do not read rows in parts"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            config_of("llama").replace(n_heads=2),
            "n_heads=2 of llama do not split over 4 processes, which exchange heads",
        ),
        (config_of("transformer").replace(n_kv_heads=2), "n_kv_heads=2 of transformer do not split over 4 processes"),
        (config_of("hgrn2").replace(encoder={"n_classes": 2}), "an encoder reads whole rows"),
    ],
)
def test_a_model_that_does_not_split_is_refused(config: ModelConfig, message: str) -> None:
    with pytest.raises(InputError, match=message):
        config.check_split(4)
    config_of("hgrn2").replace(n_heads=2).check_split(4)


class Alone(LlamaMixer):
    """A plugin's, with a `mix` of its own that exchanges no heads."""

    def mix(self, x: Tensor, stream: Stream, cache: LayerCache) -> tuple[Tensor, LayerCache]:
        return super().mix(x, stream, cache)


def message_of(call: Callable[[], object]) -> str:
    with pytest.raises(InputError) as raised:
        call()
    return str(raised.value)


def read_in_parts(rank: int, size: int, folder: Path) -> None:
    """What this process of a group makes of all cases; the first one writes it down."""
    torch.set_num_threads(1)
    register("alone", mixer=lambda: Alone, constant_state=False)
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=size)
    results: dict[str, Any] = {}
    for case in CASES:
        model, group = case.model(), SequenceGroup()
        model.decoder.split(group)
        result = case.read_by(model)
        parts = [torch.empty_like(result["logits"]) for _ in range(group.size)]
        dist.all_gather(parts, result.pop("logits").contiguous())
        for tensor in result.values():
            dist.all_reduce(tensor)
        results[str(case)] = {name: tensor / group.size for name, tensor in result.items()}
        results[str(case)]["logits"] = torch.cat(parts, 1)
    kept = {}
    for arch in KEPT:
        model = build_model(wide(arch), 0)
        model.decoder.split(SequenceGroup())
        ids = torch.randint(0, 67, (ROWS, model.model_config.context_length))
        kept[arch] = kept_bytes(model, lambda model=model, ids=ids: model(ids, ids).loss, "fp32")
    model.decoder.split(group)
    if not group.rank:
        ids, x = torch.zeros(1, LENGTH, dtype=torch.int64), torch.ones(1, 1, 1, requires_grad=True)
        refused = [
            lambda: model(ids[:, 1:]),
            lambda: model(ids, use_cache=True),
            lambda: group.send(x, 0, {"state": ids}),
            lambda: build_model(config_of("alone")).decoder.split(group),
        ]
        results |= {"kept": kept, "processes": group.size, "refused": list(map(message_of, refused))}
        torch.save(results, folder / "all.pt")
    dist.destroy_process_group()
