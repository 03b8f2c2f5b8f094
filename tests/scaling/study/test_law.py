"""Law files: reading them, and the runs that follow one."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from analysis.rates.law import fit_rates, law_file
from arch.errors import InputError
from data.files import write_json
from flops import count_params
from jobs.snapshot import copy_study
from scaling.study.file import PACKAGED
from scaling.study.rate_law import RateLaw, Recipe
from scaling.study.rates import read_law, swept_as
from scaling.study.spec import load_study
from scaling.study.training_rules import beta2_at
from tests.analysis.rates.worlds import World
from tests.commands import refused
from tests.scaling.rated import rated
from tests.wrong_forms import changes

WORLD = World(sizes=(6_000, 25_000, 60_000), batches=(1_024, 4_096), c=(-6.0, -0.4, -0.1, 0.4), archs=("llama", "tnl"))
OPTIMIZER = {"weight_decay": 0.1, "betas": [0.9, 0.95], "eps": 1e-8, "grad_clip": 1.0}


@pytest.fixture(scope="module")
def law() -> RateLaw:
    recipe = Recipe(
        **{"tokenizer": "bytes", "vocab_size": 257, "context_length": 256, "schedule": {"schedule": "constant"}},
        **{"optimizer": OPTIMIZER, "beta2_batch_tokens": None, "warmup_tokens": [0, 0], "corpus_fingerprint": "f"},
        loss="validation",
    )
    return law_file(fit_rates(WORLD.sweep(np.random.default_rng(0))), recipe)


def study(tmp_path: Path, law: RateLaw | None, training: dict[str, Any], **more: Any) -> Path:
    if law is not None:
        write_json(tmp_path / "rates.json", law.model_dump(mode="json", by_alias=True))
    raw = {
        "name": "s",
        "out": str(tmp_path / "out"),
        "corpus": {"source": "synthetic:0:200000"},
        "grid": {"archs": ["llama", "tnl"], "sizes": ["6k", "25k"]},
        "model": {"context_length": 256},
        "training": {"batch_tokens": 1_024, "lr": "law", "lr_law": "rates.json", "n_tokens": "20N", **training},
        **more,
    }
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def test_runs_take_the_laws_rate_to_three_digits_and_record_where_it_is_from(tmp_path, law):
    runs = rated(load_study(study(tmp_path, law, {}, overrides={"by_run": {"tnl/25k": {"lr": 1e-3}}})))
    for run in runs[:3]:
        n = count_params(run.config).non_embedding
        rate = law.laws[run.arch].at(n, 20 * n, 1_024)
        assert run.training.lr == float(f"{rate.rate:.3g}") and run.training.lr_law is None
        assert run.rate.followed.law_sha256 == read_law(tmp_path / "rates.json").sha256
        assert run.rate.followed.low < run.training.lr < run.rate.followed.high
    assert runs[3].training.lr == 1e-3 and runs[3].rate is None
    # the number is what a run is known by, not where it is from
    fixed = rated(load_study(study(tmp_path, law, {"lr": runs[0].training.lr, "lr_law": None})))[0]
    assert (fixed.spec_hash, fixed.run_id) == (runs[0].spec_hash, runs[0].run_id)


def test_branches_share_the_rate_of_the_mean_of_their_lengths(tmp_path, law):
    """The geometric mean of the shortest and the longest; the law is one of their schedule."""
    recipe = law.recipe.model_copy(
        update={
            "schedule": {"schedule": "wsd", "decay_fraction": 0.2, "decay_shape": "linear", "final_lr_fraction": 0.1}
        }
    )
    of_wsd = law.model_copy(update={"recipe": recipe})
    path = study(tmp_path, of_wsd, {"n_tokens": None, "branches": ["10N", "20N", "40N"], "schedule": "wsd"})
    runs = [run for run in rated(load_study(path)) if run.arch == "llama" and run.size == "25k"]
    n = count_params(runs[0].config).non_embedding
    assert {run.training.lr for run in runs} == {float(f"{law.laws['llama'].at(n, 20 * n, 1_024).rate:.3g}")}
    with pytest.raises(InputError, match="its sweep had schedule schedule constant, the run has schedule wsd"):
        rated(load_study(study(tmp_path, law, {"schedule": "wsd"})))


def test_a_study_alone_reads_no_law(tmp_path, law):
    """Its runs are the same whether the file is there or not, and no run without a rate is one with a rate."""
    path = study(tmp_path, law, {})
    before = load_study(path).runs()
    assert all(run.is_pending and run.training.lr == "law" and run.rate.law == "rates.json" for run in before)
    followed = rated(load_study(path))
    assert not {run.spec_hash for run in before} & {run.spec_hash for run in followed}
    (tmp_path / "rates.json").unlink()
    assert load_study(path).runs() == before
    with pytest.raises(InputError, match="no such law file"):
        rated(load_study(path))


@pytest.mark.parametrize(
    ("training", "more", "message"),
    [
        ({"lr_law": "none.json"}, {}, "none.json: no such law file"),
        ({"lr_law": "/dev/zero"}, {}, "/dev/zero: no law file (zero is no regular file)"),
        ({"lr_law": None}, {}, "needs the law's file: add training.lr_law"),
        ({"optimizer": "muon"}, {}, "its sweep had optimizer adamw, the run has muon"),
        ({"weight_decay": 0.0}, {}, "its sweep had weight_decay 0.1, the run has 0.0"),
        ({}, {"grid": {"archs": ["hgrn2"], "sizes": ["6k"]}}, "no law of hgrn2 (has laws of llama, tnl)"),
        ({"batch_tokens": 65_536, "n_tokens": "40N"}, {}, "batch of the run lies 16 times outside"),
        ({"n_tokens": "8000N"}, {}, "D of the run lies"),
    ],
)
def test_a_law_of_something_else_is_refused_in_one_line(tmp_path, law, training, more, message):
    with refused(message):
        rated(load_study(study(tmp_path, law, training, **more)))


def test_an_extrapolated_rate_may_be_asked_for_and_is_a_warning(tmp_path, law):
    training = {"n_tokens": "8000N", "lr_law_beyond": 1e3}
    run = rated(load_study(study(tmp_path, law, training)), "size=25k")[0]
    assert run.rate.followed.outside["n_tokens"] > 10
    assert any("D lies" in note and "llama/25k" in note for note in run.notes)
    other = study(tmp_path, law, {"lr_law": "rates.json"}, model={"context_length": 128})
    assert any(
        "context_length 128, the law of its learning rate 256" in note for note in rated(load_study(other))[0].notes
    )


def test_a_run_of_another_model_than_the_swept_one_is_named(tmp_path, law):
    recipe = law.recipe.model_copy(update={"model": {"tnl": {"decay": "independent", "norm": "srms"}}})
    swept = law.model_copy(update={"recipe": recipe})
    grid = {"archs": ["llama", "tnl"], "sizes": ["25k"], "axes": {"model.decay": ["independent", "none"]}}
    llama, same, other = rated(load_study(study(tmp_path, swept, {}, grid=grid)))
    assert not llama.notes and not same.notes and not same.rate.followed.swept_model
    assert other.rate.followed.swept_model == {"decay": "independent"}
    assert other.notes == ["tnl/25k, decay=none: its rate was swept with decay=independent, and the run has decay=none"]
    at_usual = law.model_copy(update={"recipe": law.recipe.model_copy(update={"model": {"llama": {"init_std": 0.02}}})})
    (by_width,) = rated(
        load_study(
            study(tmp_path, at_usual, {}, grid=grid | {"archs": ["llama"], "axes": {}}, model={"init_std": None})
        )
    )
    assert by_width.notes[-1] == "llama/25k: its rate was swept with init_std=0.02, and the run has init_std=null"


def test_a_law_without_a_term_in_tokens_holds_for_the_tokens_that_were_swept(tmp_path):
    world = World(sizes=(6_000, 12_000, 25_000, 60_000), batches=(1_024,), horizons=(20,), archs=("llama", "tnl"))
    fit = fit_rates(world.sweep(np.random.default_rng(0)), without=["n_tokens"])
    recipe = Recipe(
        **{"tokenizer": "bytes", "vocab_size": 257, "context_length": 256, "schedule": {"schedule": "constant"}},
        **{"optimizer": OPTIMIZER, "beta2_batch_tokens": None, "warmup_tokens": [0, 0], "corpus_fingerprint": None},
        loss="validation",
    )
    path = study(tmp_path, law_file(fit, recipe), {"n_tokens": "60N", "lr_law_beyond": 100})
    with pytest.raises(InputError, match="it has no term in D, and the run lies"):
        rated(load_study(path), "size=25k")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "x"}, "its schema is 'x', not"),
        ({"version": 2}, "its version is 2, not 1"),
        ({"n_params": "total"}, "its n_params is 'total', not 'non_embedding'"),
        ({"laws": {"llama": {}}}, "is damaged: laws.llama"),
    ],
)
def test_a_file_that_is_no_law_is_refused(tmp_path, law, change, message):
    path = tmp_path / "law.json"
    write_json(path, law.model_dump(mode="json", by_alias=True) | change)
    with pytest.raises(InputError, match=message.replace("'", ".")):
        read_law(path)


def test_a_law_file_holds_every_digit(tmp_path, law):
    write_json(tmp_path / "law.json", law.model_dump(mode="json", by_alias=True))
    assert read_law(tmp_path / "law.json").law == law


def test_beta2_halves_within_the_same_tokens_at_every_batch(tmp_path):
    for batch in (8_192, 32_768, 131_072):
        tokens = batch * math.log(0.5) / math.log(beta2_at(0.95, 65_536, batch))
        assert tokens == pytest.approx(65_536 * math.log(0.5) / math.log(0.95), rel=1e-4)
    assert beta2_at(0.95, 65_536, 65_536) == 0.95
    assert beta2_at(0.95, 65_536, 10**7) == 0.9 and beta2_at(0.95, 10**7, 1_024) == 0.9999
    assert beta2_at(0.5, 1_024, 1_024) == 0.5  # stated, not clipped
    path = study(tmp_path, None, {"lr": 1e-3, "lr_law": None, "beta2_batch_tokens": 4_096, "n_tokens": 100_000})
    run = rated(load_study(path))[0]
    assert run.training.betas == [0.9, round(0.95**0.25, 6)] and run.training.beta2_batch_tokens is None


def test_jobs_get_a_copy_of_the_law_beside_that_of_the_study(tmp_path, law):
    spec = load_study(study(tmp_path, law, {}, overrides={"by_size": {"25k": {"lr_law": "../x.json", "lr": 1e-3}}}))
    assert spec.law_files == ["rates.json", "../x.json"]
    target = tmp_path / "submission" / "study.yaml"
    target.parent.mkdir()
    copy_study(Path(spec.path), target, spec.law_files[:1])
    assert rated(load_study(target))[0].spec_hash == rated(spec)[0].spec_hash
    with pytest.raises(InputError, match="give its absolute path"):
        copy_study(Path(spec.path), target, spec.law_files)


def test_a_batch_is_halved_until_a_run_has_its_steps(tmp_path):
    given = {"lr": 1e-3, "lr_law": None, "batch_tokens": 65_536, "micro_batch_tokens": 16_384, "min_steps": 1_000}

    def batch(**training: Any) -> tuple[int, int, int | None]:
        run = rated(load_study(study(tmp_path, None, given | training)))[0]
        assert run.training.min_steps is None
        return run.training.batch_tokens, run.n_steps, run.training.micro_batch_tokens

    assert batch(n_tokens=20_000_000) == (16_384, 1_221, 16_384)  # the example: 305 steps of 65,536
    assert batch(n_tokens=10**9)[:2] == (65_536, 15_259)
    assert batch(n_tokens=1_000_000) == (512, 1_954, None)
    assert batch(n_tokens=100_000)[:2] == (256, 391)  # one sequence: fewer steps than asked for
    assert batch(n_tokens=None, branches=[20_000_000, 10**9], schedule="wsd")[0] == 16_384
    with_rule = {"beta2_batch_tokens": 65_536, "n_tokens": 20_000_000}
    assert rated(load_study(study(tmp_path, None, given | with_rule)))[0].training.betas == [0.9, round(0.95**0.25, 6)]
    fixed = load_study(study(tmp_path, None, {"lr": 1e-3, "lr_law": None, "batch_tokens": 512, "n_tokens": 10**6}))
    ruled = load_study(study(tmp_path, None, given | {"n_tokens": 10**6, "micro_batch_tokens": None}))
    assert fixed.runs()[0].spec_hash == ruled.runs()[0].spec_hash


def test_a_law_that_nothing_reads_is_refused(tmp_path, law):
    raw = yaml.safe_load(study(tmp_path, law, {}).read_text())
    del raw["training"]["lr"]
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(raw))
    with pytest.raises(InputError, match="is read with lr: law alone"):
        rated(load_study(tmp_path / "s.yaml"))


def test_a_law_file_of_any_form_is_one_line(tmp_path, law):
    """Wrong types, numbers without end and coefficients whose rate is no number."""
    path = study(tmp_path, law, {})
    file = next(path for path in tmp_path.glob("*.json"))
    content = file.read_bytes()
    refused = 0
    for changed in [*changes(json.loads(content), 100), content.replace(b"[", b"[1e300, ", 1), content[:-9], b"\xff"]:
        file.write_bytes(changed)
        try:
            assert all(0 < run.training.peak_lr < math.inf for run in rated(load_study(path)))
        except InputError as error:
            assert "\n" not in str(error) and str(path) in str(error)
            refused += 1
    assert refused > 15


PACKAGED_LAW = read_law(PACKAGED / "quickstart-rates.json").law
ARCHS = ["llama", "tnl", "hgrn2", "cosformer2"]


def test_the_model_the_batch_and_the_warm_up_of_the_sweep():
    recipe = swept_as(PACKAGED_LAW, ARCHS)
    assert recipe.model["init_std"] == 0.08 and not {"n_layers", "d_model", "decay_slopes"} & set(recipe.model)
    assert (recipe.training, recipe.batch, recipe.warmup, recipe.decays) == ({}, 1024, (20_480, 20_480), False)


def test_what_differs_from_the_defaults_is_taken_over():
    recipe = PACKAGED_LAW.recipe.model_copy(
        update={
            "optimizer": PACKAGED_LAW.recipe.optimizer | {"weight_decay": 0.3, "betas": [0.9, 0.99]},
            "schedule": {"schedule": "wsd", "decay_fraction": 0.1, "decay_shape": "linear"},
            "beta2_batch_tokens": 2048,
            "warmup_tokens": [1000, 4000],
            "model": {arch: {"norm": "layer", "init_std": 0.02 + 0.01 * i} for i, arch in enumerate(ARCHS)},
        }
    )
    laws = {
        arch: law.model_copy(update={"terms": [*law.terms, "batch_tokens"]}) for arch, law in PACKAGED_LAW.laws.items()
    }
    taken = swept_as(PACKAGED_LAW.model_copy(update={"recipe": recipe, "laws": laws}), ARCHS)
    assert taken.model == {"norm": "layer"}, "what architectures had otherwise is left out"
    assert taken.training == {"weight_decay": 0.3, "betas": [0.9, 0.99], "beta2_batch_tokens": 2048}
    assert (taken.batch, taken.warmup, taken.decays) == (None, (1000, 4000), True)
