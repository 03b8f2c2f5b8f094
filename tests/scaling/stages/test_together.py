"""How many runs share a GPU: small ones, where nothing speaks against it."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs import local
from scaling.stages import together
from scaling.stages.together import LITTLE_ROOM, ROOM, gains_of, runs_together, shares_of
from scaling.study.jobs_schema import Jobs
from scaling.study.run import RunSpec
from scaling.study.spec import load_study

STUDY = """
name: small
corpus: {source: "synthetic:0:3000000", tokenizer: bytes}
grid:
  archs: [hgrn2]
  sizes:
    s: {n_layers: 2, d_model: 128, n_heads: 1, d_ffn: 344}
    m: {n_layers: 8, d_model: 256, n_heads: 2, d_ffn: 688}
model: {context_length: 2048}
training: {n_tokens: 4e6, lr: 1e-3, precision: bf16, batch_tokens: BATCH, zero_stage: ZERO}
jobs: {cuda_graphs: GRAPHS}
"""


def runs(folder: Path, batch: int, zero: int = 0, graphs: str = "true", more: str = "") -> list[RunSpec]:
    text = STUDY.replace("BATCH", f"{batch}{more}").replace("ZERO", str(zero)).replace("GRAPHS", graphs)
    file = folder / "small.yaml"
    file.write_text(text)
    return load_study(str(file)).runs()


@pytest.mark.parametrize(("batch", "wanted"), [(4096, [8, 4]), (16_384, [4, 4]), (65_536, [4, 1]), (131_072, [1, 1])])
def test_as_many_as_was_measured_to_be_faster(batch: int, wanted: list[int], tmp_path: Path) -> None:
    sized_runs = runs(tmp_path, batch)
    assert [runs_together(run, None, ROOM) for run in sized_runs] == wanted


def test_a_pass_decides_not_the_batch(tmp_path: Path) -> None:
    assert [runs_together(run, None, ROOM) for run in runs(tmp_path, 65_536, more=", micro_batch_tokens: 16384")] == [
        4,
        4,
    ]


def test_what_the_study_asks_for(tmp_path: Path) -> None:
    """1: one after another. A number is for small runs; large ones stay alone."""
    small, large = runs(tmp_path, 65_536)
    assert [runs_together(small, asked, ROOM) for asked in (1, 2, 8)] == [1, 2, 8]
    assert [runs_together(large, asked, ROOM) for asked in (1, 2, 8)] == [1, 1, 1]


def test_alone_where_the_host_is_busy_or_memory_is_short(tmp_path: Path) -> None:
    assert [runs_together(run, None, ROOM) for run in runs(tmp_path, 4096, graphs="false")] == [1, 1]
    assert [runs_together(run, None, ROOM) for run in runs(tmp_path, 4096, zero=1)] == [1, 1]
    run = runs(tmp_path, 65_536)[0]
    memory = together.memory_bytes(run, 1, True)
    assert memory is not None and 4 * memory < ROOM
    assert [runs_together(run, None, room * memory) for room in (4.1, 2.5, 0.5)] == [4, 2, 1]


def test_shares_of_the_gpus_that_are_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of what they have is given away, little where nobody knows; none where the study shares GPUs out."""
    small = runs(tmp_path, 16_384)[:1]
    gpus, memory = ["0", "1"], list[int | None]([80 << 30])
    monkeypatch.setattr(local, "visible_gpus", lambda: gpus)
    monkeypatch.setattr(local, "gpu_memory_bytes", lambda: memory[0])
    assert shares_of(small, Jobs()) == [1 / 4] and shares_of(small, Jobs(parallel=2, runs_per_gpu=3)) == [1 / 3]
    assert shares_of(small, Jobs(processes=2)) == shares_of(small, Jobs(parallel=3)) == [1.0]
    needed = together.memory_bytes(small[0], 1, True)
    assert needed is not None and 2 * needed < LITTLE_ROOM
    for memory[0], n in ((int(6.5 * needed), 2), (int(2.5 * needed), 1), (None, min(4, int(LITTLE_ROOM // needed)))):
        assert shares_of(small, Jobs()) == [1 / n]
    gpus.clear()
    assert shares_of(small, Jobs()) == [1.0]


def test_what_runs_gain_in_company(tmp_path: Path) -> None:
    """At least what docs/research/trainer-speed.md has of them, of as many as are there for each GPU."""
    for batch, gains in (
        (4096, [(1.6, 2.5), (1.25, 1.4)]),
        (16_384, [(1.25, 1.4), (1.1, 1.1)]),
        (65_536, [(1.1, 1.1)]),
    ):
        for run, (two, four) in zip(runs(tmp_path, batch), gains, strict=False):
            share = 1 / runs_together(run, None, ROOM)
            for n, slots, gain in ((1, 1, None), (2, 1, two), (3, 1, two), (4, 1, four), (8, 8, None), (16, 8, two)):
                alike = [run.model_copy(update={"run_id": str(i)}) for i in range(n)]
                assert gains_of(alike, [share] * n, slots) == ({str(i): gain for i in range(n)} if gain else {})
            alike = [run.model_copy(update={"run_id": str(i)}) for i in range(8)]
            assert gains_of(alike, [1 / 2] * 8, 1) == {str(i): two for i in range(8)}
    small, large = runs(tmp_path, 65_536)
    assert gains_of([small, large, large], [1 / 4, 1.0, 1.0], 1) == {}
