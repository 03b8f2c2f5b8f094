"""`python -m scaling.trainer.bench`: what it measures, and what it refuses."""

import json

import pytest

from arch.errors import InputError
from scaling.trainer import bench

SMALL = ["--vocab-size", "257", "--batch", "2", "--context-length", "64", "--steps", "2"]


def test_a_row_each_model_and_size(tmp_path, capsys):
    out = tmp_path / "rows.json"
    bench.main(["--model", "tnl,hgrn2", "--size", "2x128", "--micro-batch", "1", "--json", str(out), *SMALL])
    rows = json.loads(out.read_text())
    assert [(row["model"], row["size"], row["processes"]) for row in rows] == [
        ("tnl", "2x128", 1),
        ("hgrn2", "2x128", 1),
    ]
    for row in rows:
        assert row["n_params"] > 10_000 and row["eager_ms"] > 0 and row["run_ms"] > 0
        assert row["tokens_per_s"] == pytest.approx(1e3 * 128 / row["run_ms"], abs=1)
    assert "run_ms" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "llam"], "did you mean 'llama'"),
        (["--model", "tnl", "--size", "8x"], "unknown size"),
        (["--model", "tnl", "--steps", "0"], "--steps"),
        (["--model", "tnl", "--micro-batch", "0"], "--micro-batch"),
        (["--model", "tnl", "--size", "2x128", *SMALL, "--batch", "3", "--micro-batch", "2"], "do not split"),
    ],
)
def test_bad_arguments_are_one_line(arguments, message):
    with pytest.raises(InputError, match=message):
        bench.main(arguments)
