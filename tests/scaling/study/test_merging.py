"""Where a trunk's weights are merged, and that nothing a run is depends on it."""

import pytest
import yaml

from arch.errors import InputError
from flops import checkpoint_bytes, count_params
from flops.hardware import device_of
from scaling.cli.flops import table_of
from scaling.cli.planning import evaluation_time
from scaling.cli.request import Request
from scaling.cli.status import status_rows
from scaling.study.cost import study_cost
from scaling.study.merging import most_sources, source_steps
from scaling.study.plan import plan, show_plan
from scaling.study.spec import load_study
from scaling.study.training import Training

BRANCHED = {"schedule": "wsd", "branches": [50_000, 100_000, "200N"], "max_tokens": 200_000}
STUDY = {
    "name": "s",
    "corpus": {"source": "synthetic:0:1000"},
    "grid": {"archs": ["llama"], "sizes": ["6k"]},
    "model": {"context_length": 256},
}


def load(path, sets=(), **training):
    path.write_text(yaml.safe_dump(STUDY | {"training": {"batch_tokens": 1024, "warmup_tokens": 10_000} | training}))
    return load_study(path, list(sets))


def test_sources_lie_evenly_over_the_last_share_of_the_tokens():
    training = Training(n_tokens=10**6, batch_tokens=1000, warmup_tokens=50_000, merge_last=5, merge_fraction=0.1)
    assert source_steps(1000, training) == [920, 940, 960, 980, 1000]
    assert source_steps(100, training) == [92, 94, 96, 98, 100]
    assert source_steps(56, training) == [52, 53, 54, 55, 56] and source_steps(53, training) == [], "warm-up"
    assert source_steps(20, training.model_copy(update={"warmup_tokens": 0})) == [], "no two at one step"


def test_points_of_a_trunk_and_that_no_hash_depends_on_them(tmp_path):
    runs_of = {
        name: load(tmp_path / "s.yaml", **BRANCHED, **more).runs()
        for name, more in (("without", {}), ("with", {"merge_last": 3, "merge_fraction": 0.2}))
    }
    for first, other in zip(runs_of["without"], runs_of["with"], strict=True):
        assert (first.run_id, first.spec_hash) == (other.run_id, other.spec_hash)
        assert first.merged_after == [] and (other.merged_after == []) == (other.trunk is not None)
        assert other.trunk is None or other.training.merge_last is None
    trunk = runs_of["with"][0]
    ends = [run.n_steps for run in runs_of["with"][1:]]
    assert ends == [49, 98, 196] and trunk.n_steps == 157
    late = [step for step in trunk.checkpoint_steps if step >= 20]
    assert trunk.merged_after == sorted({*late, 49, 98}), "checkpoints, and ends of branches that the trunk comes to"

    plain = load(tmp_path / "s.yaml", n_tokens=200_000, merge_last=3).runs()[0]
    assert plain.merged_after == [step for step in plain.checkpoint_steps if source_steps(step, plain.training)]


@pytest.mark.parametrize(("last", "fraction"), [(2, 0.3), (5, 0.2), (10, 0.9)])
def test_disk_and_evaluations_of_merged_points_are_planned(tmp_path, last, fraction):
    study = load(tmp_path / "s.yaml", **BRANCHED, merge_last=last, merge_fraction=fraction)
    planned, costs = plan(study, study.runs()), study_cost(study, study.runs(), device_of("cpu"), None, 1, "exact")
    trunk = study.runs()[0]
    kept, most = set[int](), 0
    for step in range(1, trunk.n_steps + 1):  # what the trainer keeps and drops
        left = [
            source for point in trunk.merged_after if point >= step for source in source_steps(point, trunk.training)
        ]
        kept = {source for source in {*kept, step} if source in left}
        most = max(most, len(kept))
    assert most == most_sources(trunk.merged_after, trunk.training) >= last
    n_merged, each = len(trunk.merged_after), checkpoint_bytes(trunk.config, "bf16")
    fp32 = 4 * count_params(trunk.config).total
    for disk in (planned.disk, planned.runs[0].disk, costs.disk, costs.runs[0].disk):
        assert (disk.n_merged, disk.merged_bytes, disk.merging_bytes) == (n_merged, n_merged * each, most * fp32)
    assert f"and {n_merged} merged points (" in show_plan(planned)
    assert f"Beside these: {n_merged} merged points (" in " ".join(table_of(costs).notes)
    (line,) = evaluation_time(Request(study))
    assert f", {n_merged} merged points, " in line
    rows = status_rows(study, study.runs())
    evaluated = sum(len(run.checkpoint_steps) for run in study.runs()) + n_merged
    assert sum(row["to_evaluate"] for row in rows) == evaluated and all(row["evaluated"] == 0 for row in rows)
    plain = load(tmp_path / "s.yaml", **BRANCHED)
    assert "merged" not in show_plan(plan(plain, plain.runs())) and most_sources([], plain.training) == 0


def test_what_cannot_be_merged_is_one_line(tmp_path):
    for training in ({"schedule": "wsd"}, {"schedule": "cosine"}):
        with pytest.raises(InputError, match=r"training\.merge_last of llama/6k needs a rate that does not fall"):
            load(tmp_path / "s.yaml", n_tokens=200_000, merge_last=3, **training)
    for key, value in (("merge_last", 1), ("merge_last", 1000), ("merge_fraction", 1.0), ("merge_fraction", 0)):
        with pytest.raises(InputError, match=key):
            load(tmp_path / "s.yaml", n_tokens=200_000, **{key: value})
    with pytest.raises(InputError, match=r"training\.merge_last"):
        load(tmp_path / "s.yaml", ["training.schedule=cosine"], n_tokens=200_000, merge_last=3)
