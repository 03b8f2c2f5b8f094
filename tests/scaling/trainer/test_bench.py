"""`python -m scaling.trainer.bench`: what it measures, and what it refuses."""

import json

import pytest
import torch

from arch.errors import InputError
from flops import training_memory
from scaling.trainer import bench

from .. import forks

SMALL = ["--vocab-size", "257", "--batch", "2", "--context-length", "64", "--steps", "2"]


def measured(*options, processes=1, **environment):
    """(exit code, stdout, stderr) of a process of its own, since a run's process group and what DeepSpeed sets in the
    environment stay."""
    words = ["--size", "2x128", *SMALL, *options]
    fresh = torch.cuda.is_available()
    return forks.run("scaling.trainer.bench", *words, processes=processes, fresh=fresh, **environment)


def test_a_row_each_model_and_size(tmp_path):
    out = tmp_path / "rows.json"
    code, shown, err = measured("--model", "tnl,hgrn2", "--micro-batch", "1", "--recompute", "0.5", "--json", str(out))
    assert code == 0, err
    rows = json.loads(out.read_text())
    assert [(row["model"], row["size"], row["processes"]) for row in rows] == [
        ("tnl", "2x128", 1),
        ("hgrn2", "2x128", 1),
    ]
    for row in rows:
        assert row["n_params"] > 10_000 and row["eager_ms"] > 0 and row["run_ms"] > 0
        assert row["tokens_per_s"] == pytest.approx(1e3 * 128 / row["run_ms"], abs=1)
    assert "run_ms" in shown


def test_what_was_measured_outlives_a_failure(tmp_path, monkeypatch, capsys):
    out = tmp_path / "rows.json"

    def milliseconds(config, *rest):
        if config.arch == "llama":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        if config.arch == "mamba2":
            assert [row["model"] for row in json.loads(out.read_text())] == ["tnl", "llama", "hgrn2"]
            raise RuntimeError("another")
        return 3.0

    monkeypatch.setattr(bench, "milliseconds", milliseconds)
    with pytest.raises(RuntimeError, match="another"):
        bench.main(["--model", "tnl,llama,hgrn2,mamba2", "--size", "2x128", *SMALL, "--json", str(out)])
    rows = json.loads(out.read_text())
    assert [row.get("run_ms") for row in rows] == [3.0, None, 3.0]
    assert rows[1]["notes"] == "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    shown = capsys.readouterr().out
    assert all(str(row) in shown for row in rows)


def test_processes_share_sequences():
    code, shown, err = measured(
        *("--model", "hgrn2", "--context-length", "4096", "--batch", "1", "--sequence-processes", "2"),
        processes=2,
        CUDA_VISIBLE_DEVICES="",
    )
    assert code == 0, err
    assert "'processes': 2, 'sequence_processes': 2" in shown
    how = {"micro_batch_tokens": 4096, "zero_stage": 0, "world_size": 2, "sequence_processes": 2, "kernels": False}
    counted = training_memory(bench.config_of("hgrn2", "2x128", 257, 4096), **how)["total"]
    assert f"'counted_gb': {round(counted / 1e9, 3)}" in shown


def test_rows_that_do_not_split_are_one_line():
    code, _, err = measured("--model", "tnl", "--batch", "3", "--micro-batch", "2")
    assert code == 2 and len(err.splitlines()) == 1 and "do not split" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "llam"], "did you mean 'llama'"),
        (["--model", "tnl", "--size", "8x"], "unknown size"),
        (["--model", "tnl", "--steps", "0"], "--steps"),
        (["--model", "tnl", "--micro-batch", "0"], "--micro-batch"),
        (["--model", "tnl", "--recompute", "2"], "--recompute"),
        (["--model", "tnl", "--sequence-processes", "0"], "--sequence-processes"),
        (["--model", "tnl", "--sequence-processes", "2", "--zero-stage", "3"], "take stage 0 or 1"),
    ],
)
def test_bad_arguments_are_one_line(arguments, message):
    with pytest.raises(InputError, match=message):
        bench.main(arguments)
