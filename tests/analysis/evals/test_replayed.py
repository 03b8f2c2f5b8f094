"""Batches as graphs: the bits of eager passes over every checkpoint of a model, and a line where it cannot be recorded.

On a CPU a recorder stands in that only does the work again; the same on a GPU records CUDA graphs.
"""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from analysis.evals.model import LoadedModel, nats_of, token_nats
from analysis.evals.replayed import Batches
from analysis.evals.validation import HeldOut
from arch.config import ARCHS
from arch.errors import InputError
from arch.model.layout import check_ids, ids_checked
from arch.model.lm import build_model, load_weights
from arch.presets import preset
from arch.recorder import CudaRecorder, Recorder, Work
from data.mixture import Part, whole
from data.tokenizer import get_tokenizer
from data.windows import batches, window_starts

LENGTH, ROWS = 32, 3
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
CPU_ONLY: dict[str, Recorder | None] = {"cpu": lambda work: work, "cuda": None}


class Text:
    """A corpus' held-out text."""

    validation = np.random.default_rng(0).integers(0, 257, 11 * LENGTH + 1).astype(np.uint16)

    @classmethod
    def parts(cls, split: str) -> list[Part]:
        return whole(len(cls.validation))


def loaded(arch: str, passes: Batches | None = None, device: str = "cpu") -> LoadedModel:
    model = build_model(preset(arch, "14k", context_length=LENGTH, init_std=0.2), 0).to(device).eval()
    on_gpu = device == "cuda"
    tokenizer, path = get_tokenizer("bytes"), Path("R/1")
    opened = LoadedModel(model, model.model_config, tokenizer, device, on_gpu, LENGTH, path, passes=passes)
    opened.meter.attach(model)
    return opened


def held_out() -> HeldOut:
    return HeldOut(Text, get_tokenizer("bytes"), 10 * LENGTH, ROWS)  # type: ignore[arg-type]


def score(model: LoadedModel) -> list[float]:
    text = held_out()
    return [x for part in text.parts(LENGTH, model.device) for x in text.score(model, part, lambda done: None)]


def one_by_one(model: LoadedModel) -> list[float]:
    """Losses of one batch at a time, each read back at once."""
    starts = window_starts(Text.parts("validation"), LENGTH, 10 * LENGTH)
    rows = batches(Text.validation, starts, LENGTH, ROWS)
    return [x for batch in rows for x in token_nats(model, batch).sum(1, dtype=float).tolist()]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("arch", ARCHS)
def test_every_checkpoint_of_a_model_is_read_to_the_bit(arch: str, device: str, tmp_path: Path) -> None:
    other, lines = tmp_path / "other", list[str]()
    model = loaded(arch, Batches(lines.append, CPU_ONLY[device]), device)
    build_model(model.config, 1).save_pretrained(other)
    losses = []
    for _ in range(2):
        model.meter.reset()
        losses.append(score(model))
        assert model.meter.tokens == 10 * LENGTH and model.meter.seconds > 0
        assert losses[-1] == one_by_one(model)
        load_weights(model.model, other)
    assert lines == [] and losses[0] != losses[1]


@pytest.mark.parametrize("rows", [ROWS, 2 * ROWS, 100])
def test_a_text_in_parts_gives_the_same(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analysis.evals.validation.PART", rows * (LENGTH + 1))
    model, text = loaded("tnl", Batches(print)), held_out()
    assert [len(part) for part in text.parts(LENGTH, "cpu")] == [min(rows, 10 - i) for i in range(0, 10, rows)]
    assert score(model) == one_by_one(model)
    starts = window_starts(Text.parts("validation"), LENGTH, 10 * LENGTH)
    scored = np.concatenate([Text.validation[s + 1 : s + LENGTH + 1] for s in starts])
    assert text.counts(LENGTH) == (10, int((scored < 256).sum()))


@pytest.mark.parametrize("device", DEVICES)
def test_a_few_rows_are_read_by_the_graph_of_more(device: str) -> None:
    works: list[int] = []

    def counted(work: Work) -> Work:
        recorded = work if device == "cpu" else CudaRecorder(torch.device(device))(work)

        def replay() -> None:
            works.append(1)
            recorded()

        return replay

    model = loaded("hgrn2", Batches(print, counted), device)
    assert model.passes is not None
    rows = torch.from_numpy(next(batches(Text.validation, np.arange(4) * LENGTH, LENGTH, 4))).to(device)
    eager = nats_of(model, rows)
    assert torch.equal(model.passes.few(model, rows[:2]), eager[:2]) and not works  # there is no graph yet
    score(model)
    works.clear()
    model.meter.reset()
    for n, replays in ((1, 1), (2, 1), (ROWS, 1), (ROWS + 1, 0)):
        losses = model.passes.few(model, rows[:n])
        torch.testing.assert_close(losses, eager[:n], rtol=0, atol=1e-4 if device == "cpu" else 0.1)  # bf16
        assert len(works) == replays
        works.clear()
    assert not works and model.passes.few(model, rows[:2, :-1]).shape == (2, LENGTH - 1) and not works
    assert model.meter.tokens == 0 and model.meter.seconds == 0.0
    with pytest.raises(InputError, match="outside the vocabulary"):
        model.passes.few(model, torch.full_like(rows[:1], 257))


def fails(work: Work) -> Work:
    raise torch.OutOfMemoryError("CUDA out of memory\nand more")


def wrong(work: Work) -> Work:
    """A recorder whose replays compute something else, as if a weight were changed."""

    def replay() -> None:
        weight = models[-1].model.lm_head.weight.data
        kept = weight.clone()
        weight.view(-1)[0] += 2.0**-10
        work()
        weight.copy_(kept)

    return replay


models: list[LoadedModel] = []


@pytest.mark.parametrize(
    ("record", "reason"),
    [(fails, "OutOfMemoryError: CUDA out of memory"), (wrong, "they give other losses than eager passes")],
)
def test_a_model_without_a_graph_is_reported_once_and_read_eagerly(record: Recorder, reason: str) -> None:
    lines: list[str] = []
    model = loaded("hgrn2", Batches(lines.append, record))
    models.append(model)
    assert score(model) == score(model) == one_by_one(model)
    assert lines == [f"R/1: no CUDA graphs: {reason}"]


def test_a_large_model_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analysis.evals.replayed.MAX_FLOPS", 10**6)
    lines: list[str] = []
    assert score(loaded("tnl", Batches(lines.append, fails))) and lines == []


def test_a_model_that_is_done_with_leaves_memory() -> None:
    def once(work: Work) -> Work:  # keeps no hold of the work, as a CUDA graph does not
        work()
        return lambda: None

    model, passes = loaded("llama"), Batches(print, once)
    rows = torch.from_numpy(Text.validation[None, : LENGTH + 1].astype(np.int64))
    assert torch.equal(passes.nats(model, rows), passes.nats(model, rows))
    gone = weakref.ref(model.model)
    del model
    gc.collect()
    assert gone() is None


def test_ids_are_checked_once_for_all_passes() -> None:
    model = loaded("tnl")
    bad = torch.full((1, LENGTH + 1), 257)
    with pytest.raises(InputError, match="token id 257 is outside the vocabulary"):
        held_out().score(model, bad, lambda done: None)
    with pytest.raises(InputError, match="outside the vocabulary"):
        token_nats(model, bad.numpy())
    with ids_checked():
        check_ids(bad, 257)
    with pytest.raises(InputError), ids_checked():
        check_ids(bad.float(), 257)
    with pytest.raises(InputError):
        check_ids(bad, 257)


def test_losses_stay_on_the_device() -> None:
    model, rows = loaded("cosformer2"), torch.arange(2 * (LENGTH + 1)).view(2, -1)
    losses: Tensor = nats_of(model, rows)
    assert losses.shape == (2, LENGTH) and losses.dtype == torch.float32 and losses.device == rows.device
