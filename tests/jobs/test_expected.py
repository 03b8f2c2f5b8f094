"""The time that a study is expected to take here: by finished runs, else by the measured pace of a step."""

import json
import os

import pytest

from data.files import write_json
from flops.pace import NEXT_S, START_S, makespan
from jobs.expected import Expected, expected_time, time_of
from scaling.rundir.directory import RunDir
from scaling.study.spec import load_study

from .studies import study
from .test_resources import finished, row


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_the_quickstart_takes_minutes():
    spec = load_study("four-architectures")
    estimate = expected_time(spec, [(run, RunDir(spec.run_directory(run))) for run in spec.runs()], [])
    assert 7 * 60 < estimate.seconds < 9 * 60 and (estimate.n_runs, estimate.runs_at_once) == (28, 2)
    assert "here: 28 runs, 2 at once (steps measured on one core of an AMD EPYC" in str(estimate)
    assert str(expected_time(spec, [], [])) == "nothing is left to train"


def test_finished_runs_and_begun_ones_count(tmp_path):
    spec = study(tmp_path, ["6k"], seeds=3)
    first, second, third = spec.runs("arch=llama")
    done = finished(tmp_path, first, 5120.0, 1)  # ten steps of 512 tokens a second
    begun = RunDir(tmp_path / "begun")
    begun.path.mkdir()
    begun.metrics.write_text(json.dumps(row(4, 5120.0)) + "\n")
    estimate = expected_time(spec, [(second, RunDir(tmp_path / "none")), (third, begun)], [(first, done)])
    assert estimate.seconds == pytest.approx(START_S["core"] + NEXT_S["core"] + (5 + 1) * 0.1)
    assert estimate.basis == {"the speed of finished runs": 2} and "the speed of finished runs" in str(estimate)
    assert expected_time(spec, [(first, done)], []).seconds == pytest.approx(START_S["core"])
    write_json(done.run_json, {"spec_hash": "of another", "spec": {}})  # training refuses until it is moved
    assert expected_time(spec, [(first, done)], []).seconds > 1.001 * START_S["core"]


def test_small_runs_that_share_a_gpu_take_less_of_it(tmp_path):
    training = {"n_tokens": 5_120_000, "batch_tokens": 512}
    spec = study(tmp_path, ["6k"], jobs={"parallel": 1}, seeds=2, training=training)
    todo = [(run, RunDir(tmp_path / "none")) for run in spec.runs("arch=llama")]
    first, second = (run.run_id for run, _ in todo)
    alone = expected_time(spec, todo, [])
    shared = expected_time(spec, todo, [], {first: 2.0, second: 1.25})
    seconds = [expected_time(spec, [pair], []).seconds - START_S["core"] for pair in todo]
    assert alone.seconds - shared.seconds == pytest.approx(seconds[0] / 2 + seconds[1] / 5) and seconds[0] > 0
    none_shorter = expected_time(spec, todo, [], {first: 9.0, second: 9.0}).seconds
    assert none_shorter == pytest.approx(START_S["core"] + max(seconds))
    assert "1 at once, of 2 small runs several on each GPU (" in str(shared) and "small" not in str(alone)


def test_branches_wait_for_their_trunk(tmp_path):
    seconds, nobody = {"trunk": 4.0, "short": 1.0, "long": 3.0, "alone": 2.0}, dict.fromkeys(["trunk", "alone"])
    after = {"short": "trunk", "long": "trunk"} | nobody
    assert time_of(seconds, after, 2) == 7.0 and time_of(seconds, after, 1) == 10.0
    assert makespan([3.0, 1.0, 2.0, 2.0], 2) == 4.0 and makespan([], 3) == 0.0 and makespan([1.0, 2.0], 1) == 3.0
    free = dict.fromkeys(seconds)
    assert all(time_of(seconds, free, n) == makespan(seconds.values(), n) for n in (1, 2, 3))
    spec = study(tmp_path, ["6k"], training={"schedule": "wsd", "branches": [5_120], "batch_tokens": 512})
    todo = [(run, RunDir(tmp_path / "none")) for run in spec.runs("arch=llama")]
    times = [expected_time(spec, [pair], []).seconds for pair in todo]
    again = START_S["core"] - NEXT_S["core"]  # of a process that has started already
    both = expected_time(spec, todo, []).seconds
    assert len(times) == 2 and both >= sum(times) - again - 1e-9, "one after the other"


def test_what_several_bases_have_in_common_is_said_once():
    head = "steps measured on one core"
    both = str(Expected(60.0, 3, 2, {head: 2, f"{head}; the architecture was not measured": 1}))
    assert f"({head}; of 1 run the architecture was not measured); corpus" in both
    unmeasured = "the architecture was not measured"
    twice = str(Expected(60.0, 6, 1, {f"{head}; {unmeasured}": 1, f"another; {unmeasured}": 2, head: 3}))
    assert f"(4 by {head}; 2 by another; of 3 runs {unmeasured}); corpus" in twice
    apart = str(Expected(60.0, 3, 2, {head: 2, "the speed of finished runs": 1}))
    assert f"(2 by {head}; 1 by the speed of finished runs); corpus" in apart
