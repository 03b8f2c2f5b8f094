"""The plan of jobs as data: shapes, packing, limits, the chain. No SLURM."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arch.errors import InputError
from jobs.model import ArrayJob, Resources
from jobs.plan import Need, Piece, elements_text, make_plan, pack, seconds_of
from jobs.resources import ResourceEstimate, ResourceEstimator
from scaling.study.jobs_schema import Cluster
from scaling.study.spec import load_study

from .studies import GPUS, cluster, study

SHAPE = Resources(1, 1, 0, 1, None, 10)


def planned(spec, needs, profile=None, corpus=True, **more):
    return make_plan(spec, needs, ResourceEstimator(profile or cluster()), corpus=corpus, finish=True, **more)


def to_train(spec):
    return [Need(run, True) for run in spec.runs()]


def by_kind(plan, kind):
    return [job for job in plan.jobs if job.kind == kind]


def named(plan, name):
    return next(job for job in plan.jobs if job.name == name)


def trained(plan):
    """The runs that the jobs train."""
    return [run for job in by_kind(plan, "train") for element in job.elements for run in element]


def test_the_chain(tmp_path):
    spec = study(tmp_path, ["6k", "98k"], jobs={"resources": {"98k": {"nodes": 2}}})
    plan = planned(spec, to_train(spec))
    assert [job.name for job in plan.jobs] == ["corpus", "train-0", "train-1", "eval-0", "eval-1", "finish"]
    assert named(plan, "corpus").after == ()
    for number in ("0", "1"):
        train, evaluation = named(plan, f"train-{number}"), named(plan, f"eval-{number}")
        assert train.after == (("corpus", "afterok"),)
        assert evaluation.after == ((train.name, "aftercorr"),)
        assert evaluation.elements == train.elements, "element k evaluates what element k trains"
        assert evaluation.resources.nodes == 1
    assert named(plan, "finish").after == tuple((job.name, "afterany") for job in plan.jobs[:-1])


def test_one_array_for_each_shape_of_resources(tmp_path):
    spec = study(
        tmp_path, ["6k", "14k", "98k"], jobs={"resources": {"98k": {"nodes": 2}, "hgrn2/14k": {"minutes": 33}}}
    )
    trains = by_kind(planned(spec, to_train(spec)), "train")
    assert len({job.resources for job in trains}) == len(trains) == 3
    assert {
        job.resources.nodes: sorted(r for e in job.elements for r in e) for job in trains if job.resources.nodes == 2
    } == {2: ["hgrn2-98k-c64-s0", "llama-98k-c64-s0"]}
    assert [job.elements for job in trains if job.resources.minutes == 33] == [(("hgrn2-14k-c64-s0",),)]


def branched(folder, **more):
    training = {"schedule": "wsd", "branches": [51_200, 102_400], "batch_tokens": 512, "lr": 3e-3, "zero_stage": 1}
    return study(folder, ["6k", "14k"], training=training | more)


@pytest.mark.parametrize("pack_minutes", [30, 0])
def test_branches_follow_their_trunks_element_by_element(tmp_path, pack_minutes):
    """Each with its trunk's number of processes; where they take minutes one array has all, else each has its own."""
    spec = branched(tmp_path)
    plan = planned(spec, to_train(spec), cluster(pack_minutes=pack_minutes))
    trunks = [job for job in by_kind(plan, "train") if job.name.startswith("train")]
    branches = [job for job in by_kind(plan, "train") if job.name.startswith("branch")]
    assert Counter(trained(plan)) == Counter(run.run_id for run in spec.runs())
    assert len(branches) == len(trunks) * (1 if pack_minutes else 2)
    runs = {run.run_id: run for run in spec.runs()}
    for job in branches:
        ((name, kind),) = job.after
        trunk = named(plan, name)
        assert kind == "aftercorr" and trunk.after == (("corpus", "afterok"),)
        for of_element, element in zip(job.elements, trunk.elements, strict=True):
            assert {runs[run_id].trunk for run_id in of_element} == set(element), (
                "element k is of the trunk of element k"
            )
            assert len(element) == 1, "a trunk that fails cancels its own branches alone"
        assert job.resources.world_size == trunk.resources.world_size
    for job in by_kind(plan, "train"):
        after = [later for later in by_kind(plan, "eval") if later.after == ((job.name, "aftercorr"),)]
        assert [later.elements for later in after] == [job.elements]
    assert named(plan, "finish").after == tuple((job.name, "afterany") for job in plan.jobs[:-1])


def test_branches_whose_trunk_is_trained_do_not_wait(tmp_path):
    spec = branched(tmp_path)
    needs = [Need(run, True, world_size=2) for run in spec.runs() if run.trunk]
    plan = planned(spec, needs, corpus=False)
    (job,) = by_kind(plan, "train")
    assert job.after == () and job.resources.world_size == 2, "as many processes as saved the state"
    assert "its trunk's" in job.resources.reasons["nodes"]


def test_short_runs_share_an_element_and_pack_minutes_0_keeps_them_apart(tmp_path):
    """In arrays of at most as many elements as the controller takes, of all of which at most max_running run."""
    spec = study(tmp_path, ["6k"], seeds=20)
    (together,) = by_kind(planned(spec, to_train(spec)), "train")
    assert [len(element) for element in together.elements] == [40]
    plan = planned(spec, to_train(spec), cluster(pack_minutes=0, max_running=20), max_array_size=15)
    apart = by_kind(plan, "train")
    assert [len(job.elements) for job in apart] == [15, 15, 10]
    assert Counter(trained(plan)) == Counter(run.run_id for run in spec.runs())
    assert [job.after[0][0] for job in by_kind(plan, "eval")] == [job.name for job in apart]
    throttles = {job.name: job.throttle for job in plan.jobs}
    assert throttles.pop("corpus") is throttles.pop("finish") is None
    assert 15 <= sum(throttles.values()) <= 20, "rounded down, at least one each of six arrays"
    assert throttles["train-0"] > throttles["eval-0"] >= 1, "training takes longer"
    few = planned(spec, to_train(spec), cluster(pack_minutes=0, max_running=3), max_array_size=15)
    assert {job.throttle for job in few.jobs if job.kind in ("train", "eval")} == {1}


def test_evaluations_of_another_partition_have_its_nodes_and_limit():
    spec = load_study("cluster")
    shared = {"partition": "shared", "whole_nodes": False, "gpus_per_node": 2, "cpus_per_node": 32, "max_hours": 2.0}
    plan = planned(spec, to_train(spec), Cluster(**GPUS, whole_nodes=True, by_kind={"eval": shared}))
    assert {job.resources.gpus_per_node for job in by_kind(plan, "train")} == {8}
    for job in by_kind(plan, "eval"):
        resources = job.resources
        assert (resources.gpus_per_node, resources.cpus_per_task, resources.at_once) == (1, 16, 1)
        assert resources.minutes <= 120


def test_runs_of_a_whole_node_are_side_by_side():
    """Of cluster.yaml: 16 of 24 runs ask for one GPU. Whoever is free takes the next run, within the longest's time."""
    spec = load_study("cluster")
    apart = planned(spec, to_train(spec), Cluster(**GPUS))
    whole = planned(spec, to_train(spec), Cluster(**GPUS, whole_nodes=True))
    assert Counter(trained(whole)) == Counter(trained(apart))
    (small,) = (job for job in by_kind(whole, "train") if job.resources.tasks_per_node == 1)
    assert sum(map(len, small.elements)) == 16 and small.resources.at_once == 8 == small.resources.gpus_per_node
    longest = max(job.longest_s for job in by_kind(apart, "train") if job.resources.tasks_per_node == 1)
    assert small.longest_s == longest and small.work_s > 4 * small.total_s
    for job in by_kind(whole, "train") + by_kind(whole, "eval"):
        resources = job.resources
        assert resources.gpus_per_node == 8 and resources.at_once * resources.tasks_per_node <= 8
        assert resources.at_once * resources.tasks_per_node * resources.cpus_per_task <= 64
        assert resources.memory_mb <= 500e9 / (1 << 20)
    hours = [sum(job.total_s * job.resources.nodes for job in by_kind(plan, "train")) for plan in (apart, whole)]
    assert hours[1] < 0.6 * hours[0], "of nodes, each job's a whole one"


def test_of_a_whole_node_of_unknown_memory_none_is_asked():
    """Eight times what the study asks for one evaluation may be more than the node has."""
    spec = load_study("cluster")
    assert spec.jobs.resources["eval"].memory_gb == 100
    plan = planned(spec, to_train(spec), Cluster(**GPUS | {"memory_gb_per_node": None}, whole_nodes=True))
    (job,) = {job.resources for job in by_kind(plan, "eval")}
    assert job.memory_mb is None and job.at_once == 8 and job.reasons["memory_mb"].startswith("the whole node's")


def test_a_limit_that_the_study_sets_is_each_runs_own(tmp_path):
    """So no run comes after another in its place; eight are side by side."""
    spec = study(tmp_path, ["6k"], seeds=5, jobs={"resources": {"6k": {"minutes": 33}}})
    plan = planned(spec, to_train(spec), cluster(cpus_per_node=8, whole_nodes=True))
    (job,) = by_kind(plan, "train")
    assert [len(element) for element in job.elements] == [8, 2] and job.resources.minutes == 33


@pytest.mark.parametrize("profile", [cluster(pack_minutes=0), Cluster(**GPUS)])
def test_1376_evaluations_fit_into_100_elements(tmp_path, profile):
    """Of several shapes: large rows of the larger model need a node's memory of their own."""
    spec = study(tmp_path, ["6k", "393k"], seeds=8, evaluation={"validation_tokens": 65536, "batch_rows": 2000})
    runs = spec.runs()
    needs = [Need(run, False, tuple(range(43))) for run in runs]
    assert sum(len(need.steps) for need in needs) == 1376
    plan = planned(spec, needs, profile, corpus=False, max_array_size=1001)
    evals = by_kind(plan, "eval")
    assert not by_kind(plan, "train") and all(job.after == () for job in evals)
    total = sum(len(job.elements) for job in evals)
    assert total <= 100 and (profile.gpus_per_node or (total >= 90 and len(evals) > 1))
    items = Counter(item for job in evals for element in job.elements for item in element)
    assert items == Counter(f"{run.run_id}/{step}" for run in runs for step in range(43))


@pytest.mark.parametrize(("nodes", "size_of_7b"), [(8, 48), (64, 480)])
def test_the_paper_on_64_and_512_gpus(nodes, size_of_7b):
    """On the paper's GPUs of 80 GB. Every run's processes split its 480 sequences; 7B gets as many as divide them."""
    spec = load_study("paper")
    plan = planned(spec, to_train(spec), Cluster(**GPUS | {"nodes": nodes, "gpu": "h100"}))
    runs = {run.run_id: run for run in spec.runs()}
    assert sorted(trained(plan)) == sorted(runs)
    for job in by_kind(plan, "train"):
        assert 480 % job.resources.world_size == 0
        assert job.resources.nodes <= nodes and job.resources.gpus_per_node <= 8
        if any(runs[run].size == "7b" for element in job.elements for run in element):
            assert job.resources.world_size == size_of_7b
        if nodes == 8 and any(runs[run].size == "70m" for element in job.elements for run in element):
            assert job.resources.nodes == 1, "a 70M run does not hold a 7B run's nodes"


def test_evaluations_are_given_the_time_that_their_tasks_take(tmp_path):
    """Of every checkpoint, after training and of trained runs alike."""
    spec = study(tmp_path, ["98k"])
    tokens = {"validation": 65_536, "niah": 50_000_000}
    run = spec.runs()[0]
    for need, count in ((Need(run, True), len(run.checkpoint_steps)), (Need(run, False, (1, 2)), 2)):
        short, long = (
            by_kind(planned(spec, [need], tokens=tokens_of), "eval")[0].resources
            for tokens_of in (None, lambda run: tokens)
        )
        assert short.minutes == 10 < long.minutes
        assert f"of {count} one after another" in long.reasons["minutes"]
        assert "50.00M tokens of niah" in long.reasons["minutes"]


@pytest.mark.parametrize("item", ["a\tb", "a\nb", ""])
def test_an_item_that_the_elements_file_cannot_hold(item):
    fine = ArrayJob("train-0", "train", SHAPE, (("a", "b c"), ("$(d)",)))
    assert elements_text(fine) == "a\tb c\n$(d)\n"
    with pytest.raises(InputError, match="rename it"):
        elements_text(ArrayJob("train-0", "train", SHAPE, (("fine", item),)))


@given(st.lists(st.integers(0, 20), max_size=60), st.booleans(), st.integers(0, 30), st.integers(1, 4))
def test_packing_keeps_everything_and_its_bound(values, fixed, target, at_once):
    shape = replace(SHAPE, at_once=at_once)
    pieces = [Piece(str(i), ResourceEstimate(shape, seconds, fixed)) for i, seconds in enumerate(values)]
    bins = pack(pieces, target)
    assert Counter(piece.name for packed in bins for piece in packed) == Counter(piece.name for piece in pieces)
    for packed in bins:
        assert seconds_of(packed) <= max(target, packed[0].seconds)
        assert len(packed) <= at_once or not fixed
        assert at_once > 1 or seconds_of(packed) == sum(piece.seconds for piece in packed)
