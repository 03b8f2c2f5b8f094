"""A branch equals the run of its schedule from the start, bit for bit; what it begins from is verified and recorded."""

import shutil
import signal
from itertools import pairwise
from pathlib import Path

import pytest
from safetensors.torch import load_file

from arch.errors import InputError
from data.corpus import open_corpus
from data.files import read_json, write_json
from scaling.cli.planning import outstanding
from scaling.cli.request import Request
from scaling.rundir.worklist import release_states
from scaling.study.spec import load_study
from scaling.trainer.branch import hand_over

from .branch_runs import BATCH, equal, final_weights, origin, rows_after, study, train


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    runs = study(tmp_path_factory.mktemp("branches"), ["llama"])
    order = ["d2.56k-whole", "d5.12k-whole", "trunk", "d5.12k", "d2.56k"]
    code, output = train([runs[name] for name in order])
    assert code == 0, output
    return runs


def test_a_branch_is_the_run_from_the_start(trained):
    runs = trained
    assert equal(runs["d2.56k"], runs["d2.56k-whole"]) == 3 and equal(runs["d5.12k"], runs["d5.12k-whole"]) == 6
    trunk = runs["trunk"]
    assert rows_after(trunk, 0) == rows_after(runs["d5.12k-whole"], 0)[:14], "the trunk is its beginning"
    rates = [row[-1] for row in rows_after(runs["d5.12k"], 0)]
    assert rates[-1] == 0.1 * 4e-3 and all(later < rate for rate, later in pairwise(rates))
    assert final_weights(runs["d2.56k"]) != final_weights(runs["d5.12k"]) != final_weights(trunk)
    weights = load_file(runs["d5.12k"].checkpoints()[-1].path / "model.safetensors")
    assert {str(tensor.dtype) for tensor in weights.values()} == {"torch.float32"}


def test_its_record_names_where_it_began(trained):
    branch, trunk = trained["d2.56k"], trained["trunk"]
    start = origin(branch)
    assert (start["trunk"], start["step"]) == (trunk.spec().run_id, 7)
    assert start["spec_hash"] == trunk.spec().spec_hash and len(start["state_sha256"]) == 64
    assert branch.checked_rows().left_out == {} and [c.step for c in branch.checkpoints()] == [10]
    assert branch.spec().spec_hash == trained["d2.56k-whole"].spec().spec_hash, "it is the same run"
    rows = branch.metrics.read_bytes()
    first = rows.splitlines(keepends=True)[0]
    branch.metrics.write_bytes(first.replace(b'"step": 8, "n_tokens": 2048', b'"step": 7, "n_tokens": 1792') + rows)
    assert branch.checked_rows().left_out == {"before the branch begins": 1}
    branch.metrics.write_bytes(rows)


def test_the_trunk_keeps_the_states_that_branches_begin_from(trained):
    assert [state.step for state in trained["trunk"].states()] == [7, 14]


def test_what_is_not_its_past_is_refused(trained, tmp_path):
    """No trunk, one of other settings, one that lacks the state: one line each, exit code 2, nothing trained."""
    runs = study(tmp_path, ["llama"])
    branch, trunk = runs["d2.56k"], runs["trunk"]

    def refused() -> str:
        with pytest.raises(InputError) as error:
            hand_over(branch, branch.spec(), open_corpus(branch.study / "corpus"))
        assert "\n" not in str(error.value) and "origin" not in branch.record()
        return str(error.value)

    code, output = train([branch])
    assert code == 2 and not branch.checked_rows().rows
    assert [line for line in output.splitlines() if "error: " in line] == [f"error: {refused()}"]
    assert "begins from its trunk's state after step 7" in refused() and "train llama-6k-c32-s0 first" in refused()
    shutil.copytree(trained["trunk"].path, trunk.path, dirs_exist_ok=True)
    damaged = next(path for path in trunk.state(7).rglob("*.safetensors"))
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert f"remove {trunk.path} and train it again" in refused()
    (tmp_path / "other").mkdir()
    other = study(tmp_path / "other", ["llama"], lr=1e-3)
    shutil.rmtree(trunk.path)
    shutil.copytree(other["trunk"].path, trunk.path)
    assert "was trained with other settings than its branch" in refused()
    shutil.rmtree(trunk.path)
    assert "train its trunk llama-6k-c32-s0 first" in refused()


def test_a_branch_of_a_trained_trunk_needs_its_state(trained, tmp_path):
    """Added later, where the trunk kept none: refused before anything is written, with what to do. States of branches
    that are no more are removed, those of branches that may still be trained stay."""
    trunk = study(tmp_path, ["llama"], branches=[10 * BATCH, 15 * BATCH, 20 * BATCH])["trunk"]
    shutil.copytree(trained["trunk"].path, trunk.path, dirs_exist_ok=True)
    with pytest.raises(InputError, match=r"begins after step 1[01] of its trunk, and the trunk kept no state there"):
        outstanding(Request(load_study(tmp_path / "s.yaml")))
    study(tmp_path, ["llama"])
    assert len(outstanding(Request(load_study(tmp_path / "s.yaml")))) == 2, "each begins at a state that is there"
    shutil.copytree(trunk.state(7), trunk.state(3))  # of a branch that was taken out of the list
    manifest = next(trunk.state(3).glob("manifest*.json"))
    write_json(manifest, read_json(manifest) | {"step": 3})
    assert [state.step for state in trunk.states()] == [3, 7, 14]
    release_states(trunk.path.parent, [trunk.spec()])
    assert [state.step for state in trunk.states()] == [7, 14]


def test_a_longer_branch_needs_another_trunk(tmp_path):
    """Its trunk is another run, which training refuses where the shorter one lies."""
    trunk = study(tmp_path, ["llama"])["trunk"]
    file, text = tmp_path / "s.yaml", (tmp_path / "s.yaml").read_text()
    file.write_text(text.replace(f"- {20 * BATCH}\n", f"- {30 * BATCH}\n"))
    with pytest.raises(InputError, match=f"{trunk.path}: was written with training.n_tokens=3584"):
        Request(load_study(file)).check_runs()


def killed(trained, tmp_path, name: str, write: str) -> None:
    """kill -9 of the process that trains `name` inside a write; the next one ends with the same bits."""
    runs = study(tmp_path, ["llama"])
    if name != "trunk":
        shutil.copytree(trained["trunk"].path, runs["trunk"].path, dirs_exist_ok=True)
    assert train([runs[name]], KILL_AT_WRITE=write)[0] == -signal.SIGKILL, f"no write {write} was reached"
    names = ["trunk", "d2.56k", "d5.12k"] if name == "trunk" else [name]
    code, output = train([runs[key] for key in names])
    assert code == 0, output
    for key in names[-2:]:
        assert rows_after(runs[key], 0) == rows_after(trained[key], 0)
        assert final_weights(runs[key]) == final_weights(trained[key])


def test_killed_at_the_hand_over(trained, tmp_path):
    killed(trained, tmp_path, "d2.56k", "origin:1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "write"),
    [("trunk", "state:2"), ("trunk", "checkpoint:2"), ("d5.12k", "checkpoint:1"), ("d5.12k", "state:1")],
)
def test_killed_inside_a_write(name, write, trained, tmp_path):
    killed(trained, tmp_path, name, write)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("arch", ["hgrn2", "mamba2"])
def test_two_processes_under_zero(stage, arch, tmp_path: Path):
    runs = study(tmp_path, [arch], zero_stage=stage)
    code, output = train([runs[name] for name in ("d5.12k-whole", "trunk", "d5.12k")], processes=2)
    assert code == 0, output
    assert equal(runs["d5.12k"], runs["d5.12k-whole"]) == 6
