"""The mean of a trunk's last weights: numpy's, of any process count, of the same bits after a kill, and no part of what
the run learns."""

import json
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from data.tokenizer import get_tokenizer
from scaling.cli.evaluation import not_merged
from scaling.cli.request import Request
from scaling.study.merging import are_source_steps
from scaling.study.spec import load_study
from scaling.trainer.loop import Trainer
from scaling.trainer.merging import Merger

from .branch_runs import BATCH, final_weights, rows_after, study, train

MERGE = {"merge_last": 2, "merge_fraction": 0.3}
STEPS = {10: [8, 10], 14: [12, 14]}  # where branches end or the trunk does, and the steps that each mean is of
SLOW_WRITES = ("merge-source:1", "merge-source:3", "merge-source-manifest:2", "merged-manifest:2", "state:3")
KEPT = [step * BATCH for steps in STEPS.values() for step in steps]


@pytest.fixture(scope="module")
def merged(tmp_path_factory):
    trunk = study(tmp_path_factory.mktemp("merged"), ["llama"], log_every=4, **MERGE)["trunk"]
    code, output = train([trunk])
    assert code == 0, output
    return trunk


def weights(folder: Path) -> dict[str, np.ndarray]:
    return load_file(folder / "model.safetensors")


def assert_mean(trunk, plain) -> None:
    """Of `plain`, the same run with the checkpoints that the means are of."""
    for point, steps in STEPS.items():
        sources = [weights(plain.checkpoint(step)) for step in steps]
        merged_weights = weights(trunk.merged(point))
        for name, value in merged_weights.items():
            mean = np.mean([source[name].astype(np.float64) for source in sources], axis=0).astype(np.float32)
            assert np.array_equal(value, mean), (point, name)
        assert any(not np.array_equal(merged_weights[name], sources[-1][name]) for name in merged_weights)


def test_a_merged_point_is_the_mean_of_the_last_weights_and_no_part_of_the_run(merged, tmp_path):
    run = merged.spec()
    assert run.merged_after == [10, 14]
    plain = study(tmp_path, ["llama"], checkpoint_tokens=KEPT, n_checkpoints=None)["trunk"]
    code, output = train([plain])
    assert code == 0, output
    assert_mean(merged, plain)
    rows = {row[0]: row for row in rows_after(plain, 0)}
    kept = rows_after(merged, 0)
    assert kept == [rows[row[0]] for row in kept] and final_weights(plain) == final_weights(merged)
    assert 10 not in [row[0] for row in kept], "merging writes no row"
    shutil.rmtree(plain.study)
    without = study(tmp_path, ["llama"], log_every=4)["trunk"].spec()
    assert (without.spec_hash, without.run_id, without.merged_after) == (run.spec_hash, run.run_id, [])
    manifest = json.loads((merged.merged(10) / "manifest.json").read_text())
    assert manifest["merged"]["steps"] == [8, 10] and manifest["n_tokens"] == 10 * BATCH and manifest["probe_loss"] > 0
    assert sorted(path.name for path in (merged.path / "merged").iterdir()) == ["00000010", "00000014"]
    assert not list((merged.path / "merge").iterdir()), "the weights that were averaged are gone"
    assert [checkpoint.step for checkpoint in merged.checkpoints()][-1] == 14 and 10 not in [
        c.step for c in merged.checkpoints()
    ]


@pytest.mark.parametrize("write", ["merged:1", *(pytest.param(write, marks=pytest.mark.slow) for write in SLOW_WRITES)])
def test_killed_inside_the_merge(write, merged, tmp_path):
    """What is half written is never used, and the next process ends with the same bits."""
    trunk = study(tmp_path, ["llama"], log_every=4, **MERGE)["trunk"]
    assert train([trunk], KILL_AT_WRITE=write)[0] == -signal.SIGKILL, f"no write {write} was reached"
    code, output = train([trunk])
    assert code == 0 and "warning" not in output, output
    for point in STEPS:
        for name in ("model.safetensors", "manifest.json"):
            assert (trunk.merged(point) / name).read_bytes() == (merged.merged(point) / name).read_bytes()
    assert rows_after(trunk, 0) == rows_after(merged, 0) and final_weights(trunk) == final_weights(merged)
    assert not list((trunk.path / "merge").iterdir())


def test_a_lost_merged_point_is_a_warning(merged, tmp_path):
    trunk = study(tmp_path, ["llama"], log_every=4, **MERGE)["trunk"]
    shutil.copytree(merged.path, trunk.path, dirs_exist_ok=True)
    shutil.rmtree(trunk.merged(10))
    (trunk.path / "merge" / "00000012").mkdir()
    run = trunk.spec()
    identity = {"run_id": run.run_id, "spec_hash": run.spec_hash}
    merger = Merger(trunk, run, identity, np.zeros((1, 2)), torch.device("cpu"), get_tokenizer("bytes"), print)
    (line,) = merger.resume(12)
    assert line.startswith(f"warning: {trunk.merged(10)} is missing, damaged or of other weights and lies before")
    assert (trunk.path / "merge" / "00000012").exists(), "the mean at 14 needs it"
    assert len(merger.resume(11)) == 1 and not list((trunk.path / "merge").iterdir())
    (warning,) = not_merged(Request(load_study(tmp_path / "s.yaml")))
    assert f"{run.run_id} has no merged weights after steps 10" in warning


def test_weights_merged_otherwise_are_not_taken_for_those_asked_for(merged, tmp_path):
    """merge_last and merge_fraction are in no hash."""
    trunk = study(tmp_path, ["llama"], log_every=4, **(MERGE | {"merge_fraction": 0.6}))["trunk"]
    shutil.copytree(merged.path / "merged", trunk.path / "merged")
    run = trunk.spec()
    assert run.merged_after == [10, 14] and merged.has_merged(10, merged.spec().training)
    assert not trunk.has_merged(10, run.training)
    assert not are_source_steps([8, 10], 10, run.training.model_copy(update={"merge_last": None}))
    identity = {"run_id": run.run_id, "spec_hash": run.spec_hash}
    merger = Merger(trunk, run, identity, np.zeros((1, 2)), torch.device("cpu"), get_tokenizer("bytes"), print)
    (line,) = merger.resume(12)
    assert "is missing, damaged or of other weights" in line and not trunk.merged(14).exists(), "made again"


def test_weights_kept_for_a_mean_go_where_none_is_made(tmp_path):
    trunk = study(tmp_path, ["llama"], log_every=1, **MERGE)["trunk"]
    (trunk.path / "merge" / "00000008").mkdir(parents=True)
    without = study(tmp_path, ["llama"], log_every=1)["trunk"]
    assert without.path == trunk.path and without.spec().merged_after == []
    assert Trainer(without, torch.device("cpu"), time.perf_counter()).train() == 0
    assert not (trunk.path / "merge").exists()


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_two_processes_under_zero(stage, tmp_path):
    (tmp_path / "plain").mkdir()
    trunk = study(tmp_path, ["hgrn2"], zero_stage=stage, **MERGE)["trunk"]
    plain = study(tmp_path / "plain", ["hgrn2"], zero_stage=stage, checkpoint_tokens=KEPT, n_checkpoints=None)["trunk"]
    for run in (trunk, plain):
        code, output = train([run], processes=2)
        assert code == 0, output
    assert_mean(trunk, plain)
