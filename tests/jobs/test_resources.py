"""What a run asks for: by the cost models' own numbers, refused where no node can give it."""

import json
import math

import pytest

from arch.errors import InputError
from data.files import write_json
from flops import train_flops_per_token, training_memory
from flops.hardware import FILLED
from jobs.model import Resources
from jobs.resources import LIMITS, START_S, ResourceEstimate, ResourceEstimator, worlds
from jobs.speed import ASSUMED, Measured, expected, measured, speed_of
from scaling.rundir.directory import RunDir
from scaling.study.jobs_schema import Cluster, ResourceRequest
from scaling.study.spec import load_study

from .studies import GPUS, cluster, study

NOTHING = ResourceRequest()


def gpus(**keys):
    return Cluster(**(GPUS | {"gpu": "h200"} | keys))


def paper(size, arch="llama", *sets):
    return load_study("paper", list(sets)).runs(f"arch={arch},size={size}")[0]


def test_a_run_gets_the_fewest_gpus_that_finish_in_time():
    run, profile = paper("160m"), gpus(mfu=0.5, target_hours=24.0)
    asked = ResourceEstimator(profile).train(run, NOTHING)
    one_gpu_h = train_flops_per_token(run.config, "exact") * run.n_tokens / (989.5e12 * 0.5) / 3600
    enough = [n * t for n, t in worlds(run, 8, 8) if one_gpu_h / (n * t) <= 24]
    assert asked.resources.world_size == enough[0] > 1
    assert math.isclose(asked.seconds, one_gpu_h * 3600 / enough[0])
    assert asked.resources.gpus_per_node == asked.resources.tasks_per_node
    assert asked.resources.minutes * 60 >= min(24 * 3600, START_S + asked.seconds * profile.time_factor)
    assert expected(run, 8, gpus(mfu=0.2)).step_seconds == 2 * expected(run, 8, gpus(mfu=0.4)).step_seconds
    tighter = ResourceEstimator(gpus(mfu=0.5, target_hours=12.0)).train(run, NOTHING)
    assert tighter.resources.world_size > asked.resources.world_size


@pytest.mark.parametrize("seconds", [60.0, 700.0, 5000.0, 30_000.0])
def test_a_time_limit_is_the_least_that_holds_the_expected_time(seconds):
    estimator = ResourceEstimator(gpus(max_hours=24.0))
    limited = estimator.limited(ResourceEstimate(Resources(1, 1, 1, 1, None, 0), seconds)).resources
    wanted = START_S + seconds * estimator.profile.time_factor
    assert limited.minutes * 60 >= wanted and limited.expected_requeues == 0
    assert not [limit for limit in LIMITS if wanted <= limit * 60 < limited.minutes * 60]


def test_gpus_are_reckoned_by_their_kernels_and_cores_by_plain_forms(tmp_path):
    """The paper's 3B on 80 GB: two GPUs suffice by what the kernels keep, 64 would not by what the plain forms keep."""
    run = paper("3b", "hgrn2")
    assert run.recompute and run.training.micro_batch_tokens == 32768

    def needed(world, kernels):
        how = {"recompute": True, "accumulate": True, "kernels": kernels}
        return training_memory(run.config, micro_batch_tokens=32768, world_size=world, **how)["total"]

    assert ResourceEstimator(gpus(target_hours=1e9, gpu="h100")).train(run, NOTHING).resources.world_size == 2
    assert needed(2, True) < FILLED * 80e9 < min(needed(1, True), needed(64, False))
    small = ResourceEstimator(gpus(target_hours=1e9, gpu="h100")).train(paper("70m"), NOTHING)
    assert small.resources.world_size == 1

    run = study(tmp_path, ["98k"]).runs()[0]
    plain = ResourceEstimator(cluster()).train(run, NOTHING).resources
    rows = run.training.batch_tokens // run.context_length // plain.world_size
    how = {"world_size": plain.world_size, "zero_stage": run.training.zero_stage, "precision": run.training.precision}
    shown = training_memory(run.config, micro_batch_tokens=rows * run.context_length, kernels=False, **how)["total"]
    assert f"{shown / 1e9:.3g} GB by the memory model" in plain.reasons["memory_mb"]


def test_a_model_that_fits_no_gpu_is_refused_before_anything():
    run = paper("7b", "llama", "jobs.recompute=false", "training.zero_stage=0")
    with pytest.raises(InputError, match=r"llama-7b.* does not fit: .*, and 90% of a GPU's 80 GB may be filled: lower"):
        ResourceEstimator(gpus(gpu="h100")).train(run, NOTHING)


def test_what_makes_a_model_fit_is_named():
    run = paper("3b", "llama", "jobs.recompute=false", "training.micro_batch_tokens=32768")
    ways = "training.micro_batch_tokens=8192 or jobs.recompute=0.75"
    with pytest.raises(InputError, match=rf"may be filled: {ways} makes it fit"):
        ResourceEstimator(gpus(gpu="h100")).train(run, NOTHING)
    for share, micro in (("0.75", 32768), ("false", 8192)):
        fits = paper("3b", "llama", f"jobs.recompute={share}", f"training.micro_batch_tokens={micro}")
        ResourceEstimator(gpus(gpu="h100")).train(fits, NOTHING)


def test_a_run_longer_than_the_partition_allows_is_queued_again():
    run, profile = paper("7b"), gpus(max_hours=12.0)
    asked = ResourceEstimator(profile).train(run, NOTHING)
    assert asked.resources.minutes == 720
    times = asked.seconds * profile.time_factor / (12 * 3600 - START_S - profile.signal_s)
    assert asked.resources.expected_requeues == math.ceil(times) - 1 > 5
    assert "requeue" in asked.resources.reasons["minutes"]


def test_what_a_study_asks_for_is_what_it_gets(tmp_path):
    resources = {
        "98k": {"nodes": 2, "minutes": 7},
        "hgrn2": {"memory_gb": 3},
        "hgrn2/98k": {"tasks_per_node": 2, "cpus_per_task": 5, "minutes": 9},
    }
    spec = study(tmp_path, ["6k", "98k"], jobs={"resources": resources})
    estimates = {
        run.run_id: ResourceEstimator(cluster()).train(run, spec.jobs.resources_of(run.arch, run.size))
        for run in spec.runs()
    }
    request = estimates["hgrn2-98k-c64-s0"].resources
    assert (request.nodes, request.tasks_per_node, request.cpus_per_task, request.minutes) == (2, 2, 5, 9)
    assert request.memory_mb == int(3e9 / 2**20)
    other = estimates["llama-98k-c64-s0"].resources
    assert (other.nodes, other.tasks_per_node, other.minutes) == (2, 1, 7)
    assert estimates["llama-6k-c64-s0"].resources.nodes == 1
    assert set(request.reasons.values()) == {"set in jobs.resources"}


@pytest.mark.parametrize(
    ("profile", "asked", "message"),
    [
        ({}, {"nodes": 5, "tasks_per_node": 1}, "does not split over 5 x 1 process; these numbers do: 1, 2, 4, 8"),
        ({}, {"nodes": 8}, "needs 8 nodes, and the cluster has 4"),
        ({}, {"cpus_per_task": 65}, "needs 65 cores a node, and the cluster has 64"),
        ({}, {"memory_gb": 500}, "MiB of memory a node, and the cluster has"),
        ({}, {"minutes": 61}, "needs 61 minutes, and the cluster has 60"),
        ({}, {"gpus_per_node": 1}, "the cluster has no GPUs"),
        ({"gpus_per_node": 2}, {"gpus_per_node": 4}, "needs 4 GPUs a node, and the cluster has 2"),
        ({"memory_gb_per_node": 0.5}, {}, r"does not fit: .* processes, and a node of the cluster has 0\.5 GB"),
    ],
)
def test_what_no_node_can_give_is_refused(tmp_path, profile, asked, message):
    run = study(tmp_path, ["6k"]).runs()[0]
    with pytest.raises(InputError, match=message):
        ResourceEstimator(cluster(**profile)).train(run, ResourceRequest(**asked))


def test_processes_split_the_batch_as_the_trainer_wants_it(tmp_path):
    run = paper("7b")  # 480 sequences in micro-batches of 4
    assert [pair for pair in worlds(run, 8, 8) if pair[0] == 1] == [(1, n) for n in (1, 2, 3, 4, 5, 6, 8)]
    many = list(worlds(run, 64, 8))
    assert all(run.batch_split(nodes * tasks).is_even and tasks > 4 for nodes, tasks in many if nodes > 1)
    eight_rows = study(tmp_path, ["6k"]).runs()[0]
    assert list(worlds(eight_rows, 4, 8)) == [(1, 1), (1, 2), (1, 4), (1, 8)], "no two nodes half used"
    assert list(worlds(eight_rows, 4, 2)) == [(1, 1), (1, 2), (2, 2), (4, 2)]
    parts = eight_rows.model_copy(update={"sequence_processes": 4})
    assert list(worlds(parts, 5, 8)) == [(1, 4), (1, 8), (2, 8), (4, 8)]


def finished(tmp_path, run, tokens_per_s, world_size):
    """A run's directory with the speed and state of a finished one."""
    rundir = RunDir(tmp_path / run.run_id)
    state = rundir.state(run.n_steps)
    state.mkdir(parents=True)
    write_json(state / "manifest.json", {"step": run.n_steps, "files": {}, "world_size": world_size})
    rundir.metrics.write_text(json.dumps(row(run.n_steps, tokens_per_s)) + "\n")
    return rundir


def row(step, tokens_per_s):
    return {"step": step, "n_tokens": 512 * step, "loss": 5.0, "tokens_per_s": tokens_per_s}


def test_finished_runs_correct_what_is_expected(tmp_path):
    spec, profile = study(tmp_path, ["6k", "10k", "393k"], seeds=3), cluster()
    runs = {(run.arch, run.size, run.seed): run for run in spec.runs()}
    done = [(runs["llama", "6k", seed], speed) for seed, speed in ((0, 1e4), (1, 3e4), (2, 2e4))]
    factors = measured(((run, finished(tmp_path, run, speed, 2)) for run, speed in done), profile)
    measured_run = runs["llama", "6k", 0]
    factor = 512 / 2e4 / expected(measured_run, 2, profile).step_seconds
    assert math.isclose(speed_of(measured_run, factors).factor, factor)
    assert speed_of(measured_run, factors).source == "measured on 3 finished runs of its kind"
    assert speed_of(runs["llama", "10k", 0], factors).source == "measured on llama/6k"
    for far in (runs["llama", "393k", 0], runs["hgrn2", "6k", 0]):
        assert (speed_of(far, factors).factor, speed_of(far, factors).source) == (1.0, ASSUMED)
    asked = ResourceEstimator(profile, factors).train(measured_run, ResourceRequest(tasks_per_node=2))
    assert math.isclose(asked.seconds, measured_run.n_tokens / 2e4), "as long as it took"
    assert "measured on 3 finished runs" in asked.resources.reasons["minutes"] or asked.fixed


def test_a_run_without_a_state_or_a_speed_tells_nothing(tmp_path):
    run = study(tmp_path, ["6k"]).runs()[0]
    assert measured([(run, RunDir(tmp_path / "none"))], cluster()) == {}
    assert measured([(run, finished(tmp_path, run, 0.0, 1))], cluster()) == {}
    on_a_cpu = finished(tmp_path / "cpu", run, 1e4, 1)
    for processes in ("1 process", "2 processes"):
        on_a_cpu.log.write_text(f"{run.run_id}: step 0 of 5, {processes}, cpu\n")
        assert measured([(run, on_a_cpu)], cluster()) and not measured([(run, on_a_cpu)], gpus())
    assert speed_of(run, {("hgrn2", "6k"): Measured(5000, [0.1])}).source == ASSUMED


def test_a_gpu_of_another_memory():
    """A kind that comes with 40 and with 80 GB."""
    ResourceEstimator(gpus(gpu="a100")).train(paper("3b"), NOTHING)
    with pytest.raises(InputError, match=r"3b.* does not fit: .* of a GPU's 40 GB may be filled"):
        ResourceEstimator(gpus(gpu="a100", memory_gb_per_gpu=40)).train(paper("3b"), NOTHING)


def test_reasons_say_what_is_so(tmp_path):
    """Nobody asked for memory; a limit that was asked for is not reckoned; tasks stand behind an evaluation's time."""
    run, bare = study(tmp_path, ["98k"]).runs()[0], cluster(memory_gb_per_node=None)
    tokens = {"validation": 65_536, "niah": 2_000_000, "mine": None}
    estimator = ResourceEstimator(bare)
    for estimate in (estimator.train(run, NOTHING), estimator.evaluate(run, tokens, 16, NOTHING)):
        assert estimate.resources.memory_mb is None
        assert estimate.resources.reasons["memory_mb"].startswith(
            "the partition's default: the profile names no memory"
        )
        assert estimate.resources.reasons["cpus_per_task"] == "training.threads"
    assert estimator.single("corpus", NOTHING).minutes == 60, "how much text there is, is not known"
    known = estimator.single("corpus", NOTHING, 12_000_000_000)
    assert (known.minutes, known.reasons["minutes"]) == (45, "12,000 MB of text at 10 MB/s")
    assert estimator.single("corpus", NOTHING, 10**15).minutes == 60
    assert estimator.single("corpus", ResourceRequest(minutes=7), 10**15).minutes == 7
    for kind in ("corpus", "finish"):
        assert "asked" not in estimator.single(kind, NOTHING).reasons["minutes"]
        assert estimator.single(kind, ResourceRequest(minutes=7)).reasons["minutes"] == "set in jobs.resources"
        assert estimator.single(kind, ResourceRequest(memory_gb=7)).reasons["memory_mb"] == "set in jobs.resources"
    both = estimator.evaluate(run, tokens, 16, NOTHING)
    shown = both.resources.reasons["minutes"]
    assert "2.000M tokens of niah, 65.54k tokens of validation, mine, of unknown length" in shown
    alone = estimator.evaluate(run, {"validation": 65_536}, 16, NOTHING)
    assert "or more a checkpoint" in shown and both.resources.minutes == 60, "the partition's limit: mine may be long"
    assert estimator.evaluate(run, tokens, 16, ResourceRequest(minutes=7)).resources.minutes == 7
    assert alone.resources.minutes < 60
    assert math.isclose(both.seconds - alone.seconds, alone.seconds * 2_000_000 / 65_536, rel_tol=0.01)
    on_cpu = alone.resources
    assert (on_cpu.nodes, on_cpu.tasks_per_node, on_cpu.gpus_per_node) == (1, 1, 0)
    on_gpu = ResourceEstimator(gpus()).evaluate(run, {"validation": 65_536}, 16, NOTHING).resources
    assert (on_gpu.gpus_per_node, on_gpu.memory_mb) == (1, int(500e9 / 2**20 / 8))
    gpu = ResourceEstimator(gpus()).train(paper("70m"), NOTHING).resources
    assert gpu.reasons["cpus_per_task"] in ("training.threads", "its GPU's share of the node's cores")
