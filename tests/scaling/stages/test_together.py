"""How many runs share a GPU: small ones, where nothing speaks against it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling.stages import together
from scaling.stages.together import runs_together, share_of
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
    found = runs(tmp_path, batch)
    assert [runs_together(run, None) for run in found] == wanted
    assert [share_of(run, Jobs(), 1) for run in found] == [1 / n for n in wanted]


def test_a_pass_decides_not_the_batch(tmp_path: Path) -> None:
    assert [runs_together(run, None) for run in runs(tmp_path, 65_536, more=", micro_batch_tokens: 16384")] == [4, 4]


def test_what_the_study_asks_for(tmp_path: Path) -> None:
    """1: one after another. A number is for small runs; large ones stay alone."""
    small, large = runs(tmp_path, 65_536)
    assert [runs_together(small, asked) for asked in (1, 2, 8)] == [1, 2, 8]
    assert [runs_together(large, asked) for asked in (1, 2, 8)] == [1, 1, 1]
    assert share_of(small, Jobs(processes=2), 4) == 1 and share_of(small, Jobs(parallel=4), 2) == 1
    assert share_of(small, Jobs(parallel=2, runs_per_gpu=3), 2) == 1 / 3


def test_alone_where_the_host_is_busy_or_memory_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [runs_together(run, None) for run in runs(tmp_path, 4096, graphs="false")] == [1, 1]
    assert [runs_together(run, None) for run in runs(tmp_path, 4096, zero=1)] == [1, 1]
    run = runs(tmp_path, 65_536)[0]
    memory = together.memory_bytes(run, 1, True)
    assert memory is not None and 4 * memory < together.ROOM
    monkeypatch.setattr(together, "ROOM", 2.5 * memory)
    assert runs_together(run, None) == 2
    monkeypatch.setattr(together, "ROOM", 0.5 * memory)
    assert runs_together(run, None) == 1
