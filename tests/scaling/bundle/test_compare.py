"""`scaling bundle compare`: the same runs trained on two machines."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from data.files import read_json, write_json
from scaling.rundir.directory import RunDir
from scaling.study.run import RunSpec

from .conftest import Made
from .small import finished_study, line_of, scaling, write_study

RUNS = ["llama-6k-c64-s0", "llama-6k-c64-s1", "llama-14k-c64-s0", "llama-14k-c64-s1"]
BETWEEN = math.log(1.01) / math.sqrt(2)  # the standard deviation of two seeds' log losses


class Two(NamedTuple):
    a: Path
    b: Path
    study: Path


def change(home: Path, run_id: str, factor: float, from_step: int = 1) -> None:
    """Multiply a run's losses from a step on, as another training of it would have left them."""
    run = home / "runs" / run_id
    for path in run.glob("evals/*/validation.json"):
        evaluation = read_json(path)
        if evaluation["step"] >= from_step:
            evaluation["values"]["loss"] *= factor
            evaluation["weights_sha256"] = f"{factor}" * 8
            write_json(path, evaluation)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [row | {"loss": row["loss"] * (factor if row["step"] >= from_step else 1)} for row in rows]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    status = read_json(run / "status.json")
    RunDir(run).write_status(**{key: status[key] for key in ("state", "step", "n_tokens", "reason")}, checkpoint=None)


def trained_by(home: Path, run_id: str, started: float, hardware: str) -> None:
    """What the process that trained a run left."""
    folder = home / "runs" / run_id / "attempts"
    folder.mkdir(exist_ok=True)
    token = "0000.0000000000.0000.0001"
    attempt = {"schema": 1, "token": token, "host": "one", "pid": 1, "step": 0, "processes": 1}
    write_json(folder / f"{token}.json", attempt | {"started": started, "hardware": hardware})


@pytest.fixture(scope="module")
def two(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Two:
    """A study of two sizes with two seeds each, and another machine's: of its runs the first is 0.5% worse from step 2
    on, the second bit-equal, the third a copy, and the fourth is not there."""
    folder = tmp_path_factory.mktemp("two")
    study = write_study(folder, made.text, sizes="[6k, 14k], seeds: [0, 1]")
    a = finished_study(study, folder / "a").study.directory
    for run_id in RUNS[1::2]:
        change(a, run_id, 1.01)
    for run_id in RUNS:
        trained_by(a, run_id, 1.7e9, "NVIDIA A100")
    b = folder / "b" / "tiny"
    shutil.copytree(a, b)
    for run_id in RUNS[:2]:
        trained_by(b, run_id, 1.8e9, "NVIDIA H100")
    change(b, RUNS[0], 1.005, from_step=2)
    shutil.rmtree(b / "runs" / RUNS[3])
    return Two(a, b, study)


@pytest.fixture(scope="module")
def bundles(two: Two) -> tuple[Path, Path]:
    """The same as bundles."""
    paths = []
    for home in (two.a, two.b):
        path = home.parent / "tiny.tar.xz"
        packed = scaling("bundle", "pack", two.study, "--out", home.parent, "--to", path)
        assert packed.exit_code == 0, packed.output
        paths.append(path)
    return paths[0], paths[1]


def compared(*words: Any) -> dict[str, Any]:
    result = scaling("bundle", "compare", *words, "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    return dict(json.loads(result.stdout))


def test_each_run_trained_twice_has_its_difference_in_seeds(two: Two, bundles: tuple[Path, Path]) -> None:
    comparison = compared(*bundles)
    assert [(run["run"], run["bit_equal"]) for run in comparison["runs"]] == [
        (f"runs/{RUNS[0]}", False),
        (f"runs/{RUNS[1]}", True),
    ]
    assert comparison["not_compared"] == {
        f"runs/{RUNS[2]}": "copies of the same training",
        f"runs/{RUNS[3]}": "only in A",
    }
    run = comparison["runs"][0]
    last = 3 + 2 / math.sqrt(30)
    assert run["final"]["a"] == pytest.approx(last) and run["final"]["b"] == pytest.approx(1.005 * last)
    assert run["final"]["difference"] == run["final"]["b"] - run["final"]["a"]
    assert run["final"]["percent"] == pytest.approx(0.5)
    assert run["seed_noise"]["s"] == pytest.approx(BETWEEN)
    assert run["final"]["seed_sds"] == pytest.approx(math.log(1.005) / BETWEEN)
    assert run["verdict"] == "undecided" and run["held_out"][0]["a"] == run["held_out"][0]["b"]
    assert (run["training_equal_until_step"], run["training_rows"]) == (1, 30)
    assert comparison["a"]["devices"] == {"1 x NVIDIA A100": 2} and comparison["b"]["devices"] == {"1 x NVIDIA H100": 2}
    assert comparison["summary"] == {"runs": 2, "bit_equal": 1, "judged": 2, "within": 2}
    folders = compared(two.a, two.b)
    paths = {"a": comparison["a"] | {"path": str(two.a)}, "b": comparison["b"] | {"path": str(two.b)}}
    assert folders == comparison | paths | {"noise_of": str(two.a)}


def test_what_is_printed(two: Two, bundles: tuple[Path, Path]) -> None:
    result = scaling("bundle", "compare", *bundles)
    assert result.exit_code == 0, (result.output, result.exception)
    lines = result.stdout.splitlines()
    assert lines[0] == "study tiny: 2 runs trained in both A and B"
    assert "1 x NVIDIA A100 (2 runs), 2023-11-14" in lines[1] and "1 x NVIDIA H100" in lines[2]
    assert ", torch " in lines[1]
    (row,) = (line for line in lines if line.startswith(RUNS[0]) and "+0.500" in line)
    assert "+0.71" in row and row.split()[-1] == "1"
    assert any(line.startswith(RUNS[1]) and line.endswith("bit-equal") for line in lines)
    assert "final held-out losses, nats/byte" in lines
    assert f"not compared: 1 run (copies of the same training): {RUNS[2]}" in lines
    assert f"not compared: 1 run (only in A): {RUNS[3]}" in lines
    assert lines[-2] == "1 of 2 runs bit-equal"
    assert lines[-1] == (
        f"2 of 2 final losses within two seed standard deviations (of the final loss: llama 0.70%; seeds of "
        f"{bundles[0]})"
    )


def test_without_seeds_the_noise_is_not_known(made: Made, tmp_path: Path) -> None:
    other = tmp_path / "tiny"
    shutil.copytree(made.home, other)
    change(other, "llama-6k-c64-s0", 0.99)
    comparison = compared(made.bundle, other)
    run = next(run for run in comparison["runs"] if run["run"] == "runs/llama-6k-c64-s0")
    assert run["seed_noise"] is None and run["final"]["seed_sds"] is None
    assert (
        comparison["summary"] == {"runs": 2, "bit_equal": 1, "judged": 1, "within": 1}
        and comparison["noise_of"] is None
    )
    text = scaling("bundle", "compare", made.bundle, other).stdout
    assert "the noise between seeds of 1 run is not known: neither has two seeds of one size" in text


def test_only_some_runs(two: Two) -> None:
    comparison = compared(two.a, two.b, "--only", "size=6k,seed=1")
    assert [run["run"] for run in comparison["runs"]] == [f"runs/{RUNS[1]}"]
    assert comparison["not_compared"] == {} and comparison["noise_of"] is None
    assert "no run with size=98k" in line_of(scaling("bundle", "compare", two.a, two.b, "--only", "size=98k"))


def test_runs_that_cannot_be_compared_are_named(two: Two, tmp_path: Path) -> None:
    other = tmp_path / "tiny"
    shutil.copytree(two.b, other)
    shutil.rmtree(other / "runs" / RUNS[0] / "evals" / "00000030")
    record = other / "runs" / RUNS[1] / "run.json"
    content = read_json(record)
    content["spec"]["training"]["eps"] = 1e-7
    write_json(record, content | {"spec_hash": RunSpec.model_validate(content["spec"]).spec_hash})
    comparison = compared(two.a, other)
    assert comparison["not_compared"] == {
        f"runs/{RUNS[0]}": "its last evaluated checkpoint is step 30 in A, 6 in B",
        f"runs/{RUNS[1]}": "of other settings (spec_hash)",
        f"runs/{RUNS[2]}": "copies of the same training",
        f"runs/{RUNS[3]}": "only in A",
    }
    assert scaling("bundle", "compare", two.a, other).stdout.splitlines()[-1] == "no run was trained twice"
    for run_id in RUNS[1:3]:
        shutil.rmtree(other / "runs" / run_id)
    shutil.rmtree(other / "runs" / RUNS[0])
    shutil.copytree(two.a / "runs" / RUNS[3], other / "runs" / RUNS[3])
    run_json = other / "runs" / RUNS[3] / "run.json"
    write_json(run_json, json.loads(json.dumps(read_json(run_json)).replace('"tiny"', '"another"')))
    assert line_of(scaling("bundle", "compare", two.a, other)).endswith(
        f"is of study another, {two.a} of tiny: give two of one study"
    )


def test_bad_input_is_one_line(two: Two, tmp_path: Path) -> None:
    text, empty = tmp_path / "text", tmp_path / "empty"
    text.write_text("no bundle")
    empty.mkdir()
    for path, why in (
        (text, "is no bundle of `scaling bundle pack`"),
        (tmp_path / "gone.tar.xz", "cannot be read (No such file or directory)"),
        (empty, "holds no runs: give a bundle, or the directory of a study, OUT/STUDY"),
    ):
        line = line_of(scaling("bundle", "compare", two.a, path))
        assert line.startswith(f"{path}: {why}") and "\n" not in line
    other = tmp_path / "tiny"
    shutil.copytree(two.b, other)
    for run_id in RUNS[1:3]:
        shutil.rmtree(other / "runs" / run_id)
    assert "has no run of the same settings as" in line_of(
        scaling("bundle", "compare", two.a, other, "--only", "seed=1")
    )
