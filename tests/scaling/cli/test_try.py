"""`scaling try`: a tiny study with a clearly bad variant, its second run, and what is wrong in one line."""

import json

import pytest
from typer.testing import CliRunner

from analysis import held_out
from arch.errors import InputError
from data.files import read_json
from scaling.cli.main import app
from scaling.cli.options import StudyOptions
from scaling.cli.trial import TrialOptions, plan_trial
from scaling.cli.variant import opened, read_variant

from ..eighth import module

STUDY = """
name: tiny
corpus: {source: "synthetic:0:300000", validation_fraction: 0.2}
grid: {archs: [llama, tnl], sizes: [10k, 6k]}
model: {context_length: 64}
training: {n_tokens: 5120, batch_tokens: 256, lr: 3e-3, n_checkpoints: 1, checkpoint_dtype: fp32}
evaluation: {validation_tokens: 8192}
jobs: {parallel: 1}
"""
BAD = "name: bad\narch: llama\ntraining: {lr: 1e-5}\n"


def scaling(folder, *arguments):
    return CliRunner().invoke(app, [*arguments, "--out", str(folder / "out")])


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tiny.yaml").write_text(STUDY)
    (tmp_path / "bad.yaml").write_text(BAD)
    return tmp_path


def test_a_bad_variant_stops_after_the_smallest_sizes(folder, monkeypatch):
    words = ["try", str(folder / "bad.yaml"), "--against", str(folder / "tiny.yaml")]
    refused = scaling(folder, *words)
    text = str(refused.exception)
    assert isinstance(refused.exception, InputError) and not (folder / "out").exists()
    assert "are not trained (llama-10k-c64-s0, ...)" in text and "size=6k|10k" in text
    with monkeypatch.context() as patch:  # as if the held-out text were a few documents
        patch.setattr(held_out, "LEAST", 1e9)
        for _ in range(2):  # where the corpus is to be made first, and where it is there
            few = scaling(folder, *words, "--train-baseline", "--json")
            assert "the held-out text amounts to " in str(few.exception), "before anything is trained"
    assert not list((folder / "out" / "tiny" / "runs").rglob("status.json"))
    done = scaling(folder, *words, "--train-baseline", "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["verdict"]["word"] == "not worth" and "worse at 6k (+" in result["verdict"]["reason"]
    assert "noise between seeds is not known" in result["verdict"]["reason"]
    assert [row["size"] for row in result["differences"]] == ["6k", "10k"]
    assert all(row["low"] > 0.1 and row["se_seeds"] is None for row in result["differences"])
    assert any("seeds were not repeated" in line for line in result["warnings"])
    cost = [row["variant"]["flops_exact"] for row in result["pairs"]]
    assert result["flops_exact"] == sum(cost)
    home = folder / "out" / "tiny"
    assert read_json(home / "tries" / "bad" / "try.json") == result
    runs = {path.name for path in (home / "runs").iterdir()}
    assert runs == {f"llama-{size}-c64-s0{end}" for size in ("6k", "10k") for end in ("", "-lr1e_05")}
    kept = {path: path.stat().st_mtime_ns for path in (home / "runs").rglob("*") if path.is_file()}
    again = scaling(folder, *words)
    assert "held-out loss at the last checkpoint, nats/byte;" in again.stdout  # a corpus of bytes
    assert again.exit_code == 0 and "not worth" in again.stdout and "train: 0 of 2 runs to do" in again.stdout
    assert kept == {path: path.stat().st_mtime_ns for path in (home / "runs").rglob("*") if path.is_file()}
    assert "independent documents" not in scaling(folder, *words, "--dry-run").output
    with monkeypatch.context() as patch:  # as if the held-out text were a few documents
        patch.setattr(held_out, "LEAST", 1e9)
        warned = scaling(folder, *words, "--dry-run").output
    assert "warning: the held-out text amounts to " in warned and "no difference will be detected" in warned
    (folder / "bad.yaml").write_text(BAD.replace("1e-5", "1e-6"))
    taken = scaling(folder, *words)
    assert "the name bad is taken by another variant" in str(taken.exception)


@pytest.mark.slow
def test_larger_sizes_are_projected(folder):
    """--go-on trains them after a bad start; what the first sizes gave stays."""
    (folder / "tiny.yaml").write_text(STUDY.replace("[10k, 6k]", "[10k, 6k, 14k]").replace("llama, tnl", "llama"))
    words = ["try", str(folder / "bad.yaml"), "--against", str(folder / "tiny.yaml"), "--train-baseline", "--json"]
    first = json.loads(scaling(folder, *words).stdout)
    assert first["not_trained"]["sizes"] == ["14k"] and first["losses"] is None
    done = json.loads(scaling(folder, *words, "--go-on", "--at", "1e12,1e11").stdout)
    assert [row["size"] for row in done["differences"]] == ["6k", "10k", "14k"]
    assert done["differences"][:2] == first["differences"] and done["verdict"]["word"] == "not worth"
    assert [row["c"] for row in done["losses"]] == done["at"] == [1e11, 1e12]
    assert all(row["low"] < row["ratio"] < row["high"] for row in done["losses"])
    assert done["compute"] is None and done["compute_reason"]
    assert done["flops_exact"] > first["flops_exact"]


def plan_of(folder, text, match="data", study=STUDY):
    """What --dry-run shows of a variant, in this process."""
    (folder / "tiny.yaml").write_text(study)
    (folder / "variant.yaml").write_text(text)
    request = StudyOptions(study=str(folder / "tiny.yaml"), out=folder / "out", as_json=True).request()
    with opened(request, read_variant(folder / "variant.yaml"), match, dry_run=True) as trial:
        return plan_trial(trial, TrialOptions(against="")).to_dict()


def message(folder, text, match="data", study=STUDY):
    with pytest.raises(InputError) as error:
        plan_of(folder, text, match, study)
    assert "\n" not in str(error.value) and not (folder / "out").exists()
    return str(error.value)


def test_what_cannot_be_tried_is_one_line(folder):
    name = "name: x\narch: llama\n"
    assert "changes nothing of llama" in message(folder, name)
    assert "changes nothing of llama-10k-c64-s0" in message(folder, name + "training: {lr: 0.003}")
    assert "model.expand_ratio means nothing to llama" in message(folder, name + "model: {expand_ratio: 2}")
    mamba = "name: x\narch: mamba2\nmodel: {d_ffn: 64}\n"
    assert "model.d_ffn changes nothing of mamba2: give another field of it" in message(folder, mamba)
    assert "has no runs of mamba2" in message(folder, mamba + "training: {lr: 0.1}")
    assert "unknown key 'model.nrm'" in message(folder, name + "model: {nrm: layer}")
    assert "follow from --match" in message(folder, name + "training: {n_tokens: 10240}")
    assert "follow from --match" in message(folder, name + "model: {context_length: 128}")
    assert "has no runs of hgrn2" in message(folder, "name: x\narch: hgrn2\ntraining: {lr: 0.1}")
    assert "did you mean 'llama'" in message(folder, "name: x\narch: lama\ntraining: {lr: 0.1}")
    one_size = STUDY.replace("[10k, 6k]", "[6k]")
    assert "two sizes at least" in message(folder, name + "training: {lr: 0.1}", study=one_size)
    axes = STUDY.replace("sizes: [10k, 6k]", "sizes: [10k, 6k], axes: {training.lr: [1e-3, 2e-3]}")
    assert "choose one value of each with --only" in message(folder, name + "model: {norm: layer}", study=axes)
    sweep = STUDY.replace("lr: 3e-3", "lr: law").replace("n_tokens: 5120", "n_tokens: 100N")
    sweep = (
        sweep.replace("[10k, 6k]", "[6k, 10k, 14k]") + "sweep: {rates: {first: 2e-3, factor: 2, count: 4}, share: 9}\n"
    )
    text = message(folder, name + "model: {norm: layer}", study=sweep)
    assert "runs have no learning rate yet" in text and text.endswith("` first") and "scaling sweep" in text
    assert "--match" in message(folder, name + "training: {lr: 0.1}", match="size")
    assert "key 'name' is missing" in message(folder, "arch: llama\ntraining: {lr: 0.1}")
    assert "unknown key 'corpus'" in message(folder, name + "corpus: {seed: 1}")


def test_branches_are_paired_by_their_endings(folder):
    """Each branch with the variant's of the same tokens; their trunks have no end to compare."""
    study = STUDY.replace("n_tokens: 5120", "schedule: wsd, branches: [2560, 5120]")
    fast = "name: fast\narch: llama\ntraining: {lr: 0.1}\n"
    (stage,) = plan_of(folder, fast, study=study)["stages"]
    assert len(stage["todo"]) == 6 and len(stage["pairs"]) == 4
    for pair in stage["pairs"]:
        assert pair["variant"]["run_id"].rpartition("-")[2] == pair["baseline"]["run_id"].rpartition("-")[2]
        assert pair["variant"]["n_tokens"] == pair["baseline"]["n_tokens"]
    assert "are branches" in message(folder, fast, "compute", study)


def test_compute_is_matched_in_whole_batches(folder):
    """A wider feed-forward part costs more a token, so the variant reads fewer."""
    wide = "name: wide\narch: llama\nmodel: {d_ffn: 96}\n"
    made = plan_of(folder, wide, "compute")
    (stage,) = made["stages"]
    for pair in stage["pairs"]:
        base, other = pair["baseline"], pair["variant"]
        assert other["n_tokens"] < base["n_tokens"] and other["n_tokens"] % 256 == 0
        assert abs(other["flops_exact"] - base["flops_exact"]) <= 128 * other["flops_per_token_exact"]
    assert len(made["warnings"]) == 2 and "are not matched" in made["warnings"][0]
    same = plan_of(folder, wide)["stages"][0]["pairs"]
    assert all(pair["variant"]["n_tokens"] == pair["baseline"]["n_tokens"] for pair in same)


def test_an_architecture_of_a_plugin_is_tried_as_a_variant(folder, monkeypatch):
    """It gets what the study says of the one that it varies."""
    (folder / "average.py").write_text(module())
    monkeypatch.syspath_prepend(str(folder))
    study = (
        STUDY + "overrides: {by_run: {tnl/6k: {lr: 7e-3}, llama/6k: {lr: 8e-3}}, by_arch: {tnl: {weight_decay: 0.3}}}\n"
    )
    made = plan_of(folder, "name: gated\nplugins: average\narch: average\nof: tnl\n", study=study)
    assert sorted(made["stages"][0]["todo"]) == ["average-10k-c64-s0", "average-6k-c64-s0"]
    request = StudyOptions(study=str(folder / "tiny.yaml"), out=folder / "out", as_json=True).request()
    with opened(request, read_variant(folder / "variant.yaml"), "data", dry_run=True) as trial:
        runs = {run.size: run for request in trial.requests(["6k", "10k"]) for run in request.runs}
    assert (runs["6k"].training.lr, runs["10k"].training.lr) == (7e-3, 3e-3)
    assert runs["6k"].training.weight_decay == 0.3 and runs["6k"].plugins == ["average"]
    words = ["try", str(folder / "variant.yaml"), "--against", str(folder / "tiny.yaml"), "--at", "1e12,much"]
    refused = scaling(folder, *words).exception
    assert isinstance(refused, InputError) and "--at" in str(refused)
    assert not (folder / "out").exists()
