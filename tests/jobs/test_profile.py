"""Cluster profiles: where they are looked for, and one line for every mistake."""

import pytest
import yaml

from arch.errors import InputError
from jobs.profile import EXAMPLE, load_profile
from scaling.study.jobs_schema import Cluster

from .studies import CPUS


@pytest.fixture(autouse=True)
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "config" / "linear-scaling" / "clusters"
    folder.mkdir(parents=True)
    return folder


def test_the_example_is_a_profile_and_names_every_key(tmp_path):
    file = tmp_path / "example.yaml"
    file.write_text(EXAMPLE)
    profile = load_profile(str(file), None)
    assert profile.gpus_per_node == 8 and profile.environment == {"NCCL_SOCKET_IFNAME": "ib0"}
    names = {line.lstrip("# ").partition(":")[0] for line in EXAMPLE.splitlines()}
    assert names >= set(Cluster.model_fields)
    plain, shown = Cluster(nodes=1, cpus_per_node=1, partition="a"), yaml.safe_load(EXAMPLE)
    assert plain.of_kind("train").partition == "a" and profile.of_kind("corpus").partition == "cpu"
    numbers = {name for name, field in Cluster.model_fields.items() if isinstance(field.default, (int, float))}
    assert {key for key in numbers & shown.keys() if shown[key] != getattr(plain, key)} == {"gpus_per_node"}


def test_where_profiles_lie(tmp_path, config):
    (config / "big.yaml").write_text(yaml.safe_dump(CPUS | {"nodes": 77}))
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(CPUS | {"nodes": 78}))
    assert load_profile("big", None).nodes == 77
    assert load_profile(str(tmp_path / "own.yaml"), "big").nodes == 78, "the command line wins"
    assert load_profile(None, "big").nodes == 77
    assert load_profile(None, Cluster(nodes=79, cpus_per_node=1)).nodes == 79


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{nodes: 1, cpus_per_node: 1, nodez: 3}", "unknown key 'nodez'.*did you mean 'nodes'"),
        ("nodes: 3", "key 'cpus_per_node' is missing"),
        ("{nodes: many, cpus_per_node: 1}", "nodes: must be a valid integer, not 'many'"),
        ("{nodes: 1, cpus_per_node: 1, gpu: h10}", "unknown device 'h10'.*did you mean 'h100'"),
        ("{nodes: 1, cpus_per_node: 1, partition: 'a b'}", "partition: 'a b' holds a character that is not al"),
        (
            "{nodes: 1, cpus_per_node: 8, by_kind: {eval: {gpus_per_node: 9}}}",
            "by_kind.eval: cpus_per_node=8 is less than gpus_per_node=9",
        ),
        ("{nodes: 1, cpus_per_node: 1, sbatch: [--array=1-3]}", "sbatch: --array=1-3: every script sets this itself"),
        (
            "{nodes: 1, cpus_per_node: 1, by_kind: {eval: {sbatch: [--requeue]}}}",
            "by_kind.eval: sbatch: --requeue: every",
        ),
        ("{nodes: 1, cpus_per_node: 8, gpus_per_node: 1, gpu: A100}", "did you mean 'a100'"),
        ("{nodes: 1, cpus_per_node: 1, by_kind: {trein: {}}}", "unknown kind of job 'trein'.*did you mean 'train'"),
        ('{nodes: 1, cpus_per_node: 1, account: "a\'; rm"}', "account"),
        ("{nodes: 1, cpus_per_node: 1, environment: {'A B': c}}", "environment"),
        ('{nodes: 1, cpus_per_node: 1, setup: ["a\\nb"]}', "setup.0: must be one line"),
        ("{nodes: 1, cpus_per_node: 1, gpus_per_node: 8}", "cpus_per_node=1 is less than gpus_per_node=8"),
        ("{nodes: 1, cpus_per_node: 1, gpus_per_node: 1, gpu: cpu}", "gpu: cpu"),
        ("{nodes: 1, cpus_per_node: 8, gpu: h100}", "gpu without gpus_per_node, so that runs would train on CPUs"),
        ("{nodes: 1, cpus_per_node: 8, max_hours: 1:30}", "line 1: '1:30' is one number to some readers of YAML"),
        (f"{{nodes: 1, cpus_per_node: 8, max_hours: 1{320 * '0'}}}", "is too large for a number; correct the YAML"),
        ("{nodes: 1, cpus_per_node: 1, signal_s: 9999, max_hours: 1}", "signal_s=9999"),
        ("{nodes: 1, cpus_per_node: 1, templates: nowhere}", "nowhere is no folder"),
        ("{nodes: 1, cpus_per_node: 1, python: ' '}", "python: is empty; name an interpreter, or leave it out"),
        ("[1, 2]", "holds no profile"),
        ("nodes: [", "correct the YAML"),
    ],
)
def test_every_mistake_is_one_line_that_names_the_file(config, text, message):
    (config / "bad.yaml").write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        load_profile("bad", None)
    assert "bad.yaml" in str(caught.value) and "\n" not in str(caught.value)


def test_a_profile_that_is_not_there(config):
    (config / "summit.yaml").write_text(yaml.safe_dump(CPUS))
    with pytest.raises(InputError, match="did you mean 'summit'"):
        load_profile("sumit", None)
    with pytest.raises(InputError, match=r"other\.yaml: no such cluster profile"):
        load_profile("folder/other.yaml", None)
    with pytest.raises(InputError, match="is a directory, not a cluster profile"):
        load_profile(str(config), None)
    with pytest.raises(InputError, match=r"no cluster is named.*summit.*`scaling run`"):
        load_profile(None, None)


def test_a_profile_that_came_with_a_bundle_is_refused(tmp_path):
    """It is shell lines; the command line's is the user's own."""
    (tmp_path / "index.json").write_text("{}")
    file, given = str(tmp_path / "study.yaml"), Cluster(**CPUS)
    for of_study in (given, "here.yaml"):
        with pytest.raises(InputError, match="came with a bundle, and a profile is code: give --cluster"):
            load_profile(None, of_study, file)
    profile = tmp_path / "own.yaml"
    profile.write_text(EXAMPLE)
    assert load_profile(str(profile), given, file).nodes == 8
    (tmp_path / "index.json").unlink()
    assert load_profile(None, given, file) == given
