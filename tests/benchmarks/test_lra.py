"""The speed table runs for every architecture and says what it could not hold."""

import torch

from arch.config import ARCHS
from benchmarks import lra as bench_lra


def test_every_architecture_has_a_line(monkeypatch):
    monkeypatch.setattr(bench_lra, "SHAPE", bench_lra.SHAPE | {"d_model": 32, "n_layers": 1, "d_ffn": 32})
    monkeypatch.setattr(bench_lra, "WARM", 0)
    rows = bench_lra.lra(lengths=(32, 64), timed=1)
    assert [(row["arch"], row["length"]) for row in rows] == [(arch, n) for arch in ARCHS for n in (32, 64)]
    assert all(row["train_steps_per_s"] > 0 and row["infer_steps_per_s"] > 0 for row in rows)
    text = bench_lra.show(rows).splitlines()
    assert [line.split()[0] for line in text[2:]] == list(ARCHS)


def test_out_of_memory_is_a_dash(monkeypatch):
    def refuse(*arguments):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(bench_lra, "speeds", refuse)
    rows = bench_lra.lra(("llama",), lengths=(1024, 2048))
    assert [row["train_steps_per_s"] for row in rows] == [None, None]
    heads, _, line = bench_lra.show(rows).splitlines()
    assert heads.split() == ["train", "1K", "train", "2K", "infer", "1K", "infer", "2K"]
    assert line.split() == ["llama", "-", "-", "-", "-"]
