"""The `flops` command as a user runs it: another process, its exit status and its output."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from arch.presets import preset
from flops import CONVENTIONS, cost_table, count_params

ROOT = Path(__file__).resolve().parents[2]


def flops(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "flops.cli", *args], cwd=ROOT, capture_output=True, text=True)


def test_help_is_quick_and_imports_nothing_heavy():
    fastest = min(timed_help() for _ in range(3))
    assert fastest < 0.3


def timed_help() -> float:
    start = time.perf_counter()
    result = flops("--help")
    assert result.returncode == 0 and "count" in result.stdout
    return time.perf_counter() - start


def test_count_json():
    report = json.loads(flops("count", "--arch", "hgrn2", "--size", "410m", "--context", "4096", "--json").stdout)
    cost = cost_table(preset("hgrn2", "410m", context_length=4096))
    assert {name: report[name] for name in cost} == cost
    assert sum(report["n_params_by_module"].values()) == report["n_params"]


def test_count_table():
    result = flops("count", "--arch", "tnl", "--size", "7b", "--convention", "6nd")
    assert result.returncode == 0 and "6,509,559,808" in result.stdout and "39,057,358,848" in result.stdout
    assert "exact" not in result.stdout


def test_table():
    rows = json.loads(flops("table", "--json").stdout)
    assert len(rows) == 24
    last = rows[-1]
    assert (last["arch"], last["size"], last["n"], last["b"]) == ("cosformer2", "7b", 8192, 480)
    assert round(last["pflops_per_step_paper"], 1) == 155.6
    assert set(last) >= {f"pflops_per_step_{name}" for name in CONVENTIONS}
    assert "155.6" in flops("table").stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["count", "--arch", "hgrn", "--size", "7b"], "did you mean 'hgrn2'?"),
        (["count", "--arch", "tnl", "--size", "7c"], "did you mean '7b'?"),
        (["count", "--arch", "tnl", "--size", "7b", "--convention", "exat"], "did you mean 'exact'?"),
        (["count", "--arch", "tnl", "--size", "7b", "--context", "0"], "context_length must be a positive integer"),
        (["count", "--arch", "tnl", "--size", "7b", "--context", "much"], "'--context'"),
        (["count", "--arch", "tnl"], "Missing option '--size'"),
        (["cuont"], "Did you mean 'count'?"),
        (["table", "--jsn"], "--json"),
        ([], "Missing command"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(args, message):
    result = flops(*args)
    assert result.returncode == 2 and result.stdout == ""
    assert message in result.stderr and result.stderr.count("\n") == 1


def test_ten_thousand_counts_take_a_second():
    cfg = preset("cosformer2", "7b")
    start = time.perf_counter()
    for _ in range(10_000):
        count_params(cfg)
    assert time.perf_counter() - start < 1.0
