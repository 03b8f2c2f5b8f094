"""The benchmark of the command lines: each is run, and one that fails is told."""

import json

import pytest

from arch.errors import InputError
from scaling.cli import bench
from scaling.study.spec import load_study


def test_every_command_is_run_and_told(capsys, monkeypatch, tmp_path):
    named = bench.cases(tmp_path)
    some = ("flops count, one model", "scaling plan, 1,000 runs")
    monkeypatch.setattr(bench, "cases", lambda folder: {name: named[name] for name in some if name in named})
    bench.main(["--repeats", "1", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert [row["command"] for row in rows] == list(some)
    assert all(row["processor_seconds"] > 0 and row["seconds"] > 0 for row in rows)
    del named[some[1]]  # as a table, of the shorter one alone
    bench.main(["--repeats", "1"])
    assert len(capsys.readouterr().out.splitlines()) == 2 + 1


def test_the_study_has_a_thousand_runs(tmp_path):
    words = bench.cases(tmp_path)["scaling plan, 1,000 runs"]
    path = tmp_path / "thousand.yaml"
    assert str(path) in words
    assert len(load_study(path, out=tmp_path).runs()) == 1000


def test_a_command_that_fails_is_told():
    with pytest.raises(InputError, match="exit code 3: no"):
        bench.measured(["-c", "import sys; print('no', file=sys.stderr); sys.exit(3)"])
    assert bench.measured(["-c", ""])[0] > 0
