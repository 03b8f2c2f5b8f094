"""Study files: their keys, the message of each mistake, and what decides the hash of a run."""

import dataclasses
import json
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from analysis.fits.settings import FitSettings
from arch.config import field_choices, field_names
from arch.errors import ELSEWHERE, InputError
from data.settings import CorpusSettings
from scaling.study.run import RunSpec
from scaling.study.schema import Corpus, Fit, Grid
from scaling.study.spec import load_study
from scaling.study.training import Training
from tests.commands import refused

CHOICES = field_choices()

STUDIES = Path(__file__).resolve().parents[3] / "scaling" / "studies"
MINIMAL = {
    "name": "tiny",
    "corpus": {"source": "synthetic:0:100000"},
    "grid": {"archs": ["llama", "tnl"], "sizes": ["14k", "25k"]},
    "model": {"context_length": 64},
    "training": {"n_tokens": 10_000, "batch_tokens": 256},
}


def write(folder, text_or_dict):
    path = folder / "study.yaml"
    path.write_text(text_or_dict if isinstance(text_or_dict, str) else yaml.safe_dump(text_or_dict))
    return path


def changed(**sections):
    return {**MINIMAL, **{key: {**MINIMAL.get(key, {}), **value} for key, value in sections.items()}}


def test_names_of_other_tools_lead_to_ours(tmp_path):
    ours = {*Training.model_fields, *field_names(), *Corpus.model_fields, *Grid.model_fields}
    assert set(ELSEWHERE.values()) <= ours and not set(ELSEWHERE) & ours
    for section, key, meant in [
        ("training", "learning_rate", "lr"),
        ("training", "max_grad_norm", "grad_clip"),
        ("model", "Sequence-Length", "context_length"),
        ("corpus", "dataset", "source"),
    ]:
        with pytest.raises(InputError, match=rf"unknown key '{section}.{key}' \(did you mean '{meant}'\?\)"):
            load_study(write(tmp_path, changed(**{section: {key: 1}})))


@pytest.fixture
def load(tmp_path):
    return lambda content=MINIMAL, *args, **kwargs: load_study(write(tmp_path, content), *args, **kwargs)


def test_numbers_in_every_spelling(load):
    text = yaml.safe_dump(MINIMAL).replace("n_tokens: 10000", "n_tokens: 1e4\n  lr: 3e-4\n  warmup_tokens: 1_000")
    training = load(text).runs()[0].training
    assert (training.n_tokens, training.lr, training.warmup_tokens) == (10_000, 3e-4, 1000)
    assert all(type(value) is int for value in (training.n_tokens, training.warmup_tokens))


def test_steps_and_checkpoints(load):
    run = load(changed(training={"n_tokens": 10_000, "batch_tokens": 256, "n_checkpoints": 4})).runs()[0]
    assert run.n_steps == 40 and run.n_tokens == 40 * 256  # 39.06 batches, rounded up
    steps = run.checkpoint_steps
    assert len(steps) == 4 and steps[-1] == 40 and steps == sorted(set(steps))
    ratios = [b / a for a, b in pairwise(steps)]
    assert max(ratios) / min(ratios) < 1.8  # evenly spaced in the logarithm, up to rounding to whole steps
    short = load(changed(training={"max_steps": 7})).runs()[0]
    assert short.n_steps == 7 and short.checkpoint_steps[-1] == 7
    listed = load(changed(training={"checkpoint_tokens": [256, 300, 5000]})).runs()[0]
    assert listed.checkpoint_steps == [1, 2, 20, 40]


def test_overrides_later_wins_and_set_wins_over_all(load):
    overrides = {
        "by_size": {"14k": {"lr": 1e-2, "warmup_tokens": 512}},
        "by_arch": {"tnl": {"lr": 2e-2}},
        "by_run": {"tnl/25k": {"lr": 3e-2}},
    }
    content = changed(overrides=overrides)
    rates = {(run.arch, run.size): run.training.lr for run in load(content).runs()}
    assert rates == {
        ("llama", "14k"): 1e-2,
        ("llama", "25k"): 3e-4,
        ("tnl", "14k"): 2e-2,
        ("tnl", "25k"): 3e-2,
    }
    assert load(content).runs()[0].training.warmup_tokens == 512
    assert {run.training.lr for run in load(content, ["training.lr=5e-3"]).runs()} == {5e-3}


BY_MODEL = {
    "by_size": {"25k": {"model": {"norm": "rms", "lower_bound": "off"}}},
    "by_arch": {"hgrn1": {"lr": 1e-2, "model": {"d_ffn": 40, "norm": "layer"}}},
    "by_run": {"hgrn1/14k": {"model": {"d_ffn": 48, "context_length": 128}}},
}


def test_overrides_of_the_model(load):
    """Beside those of training: later wins, --set over all; a size's reach the architectures that they mean something
    to; names do not change, but for the context, which is a part of every name."""
    grid = {"archs": ["llama", "hgrn1"], "sizes": ["14k", "25k"]}
    plain, content = load(changed(grid=grid)), changed(grid=grid, overrides=BY_MODEL)
    runs = {(run.arch, run.size): run for run in load(content).runs()}
    fields = ("d_ffn", "norm", "lower_bound", "context_length")
    assert {key: tuple(run.model.get(field) for field in fields) for key, run in runs.items()} == {
        ("llama", "14k"): (64, "rms", None, 64),
        ("llama", "25k"): (88, "rms", None, 64),
        ("hgrn1", "14k"): (48, "layer", "increasing", 128),
        ("hgrn1", "25k"): (40, "layer", "off", 64),
    }
    assert runs["hgrn1", "14k"].training.lr == 1e-2 and runs["llama", "14k"].training.lr == 3e-4
    assert not any(run.sets for run in runs.values())
    assert [run.run_id for run in runs.values()] == [
        "llama-14k-c64-s0",
        "llama-25k-c64-s0",
        "hgrn1-14k-c128-s0",
        "hgrn1-25k-c64-s0",
    ]
    before = {(run.arch, run.size): run.spec_hash for run in plain.runs()}
    # llama/25k has the value already
    assert {key for key, run in runs.items() if run.spec_hash != before[key]} == {("hgrn1", "14k"), ("hgrn1", "25k")}
    by_set = {run.size: run for run in load(content, ["model.d_ffn=56"]).runs("arch=hgrn1")}
    assert {size: run.model["d_ffn"] for size, run in by_set.items()} == {"14k": 56, "25k": 56}
    assert by_set["25k"].run_id == "hgrn1-25k-c64-s0-d_ffn56" and by_set["25k"].sets == ["model.d_ffn=56"]
    same = load(content, ["model.d_ffn=48"]).runs("arch=hgrn1,size=14k")[0]
    assert same.run_id == "hgrn1-14k-c128-s0" and same.spec_hash == runs["hgrn1", "14k"].spec_hash


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        (
            {"by_arch": {"tnl": {"model": {"d_fnn": 8}}}},
            "unknown key 'overrides.by_arch.tnl.model.d_fnn' (did you mean 'd_ffn'?)",
        ),
        (
            {"by_run": {"tnl/14k": {"model": {"lower_bound": "off"}}}},
            "overrides.by_run.tnl/14k.model.lower_bound means nothing to tnl, only to hgrn2, hgrn1: leave it out",
        ),
        (
            {"by_size": {"14k": {"model": {"lower_bound": "off"}}}},
            "overrides.by_size.14k.model.lower_bound means nothing to llama, tnl, only to hgrn2, hgrn1: leave it out",
        ),
        (
            {"by_arch": {"tnl": {"model": {"d_model": 25, "n_heads": 2}}}},
            "d_model=25 is not divisible by model.n_heads",
        ),
        ({"by_run": {"tnl/14k": {"model": {"context_length": 96}}}}, "is not a multiple of model.context_length=96"),
        (
            {"by_arch": {"tnl": {"reset_at_documents": True}}},
            "overrides.by_arch.tnl.reset_at_documents: must be the same for all runs, whose losses are fitted together",
        ),
    ],
)
def test_mistakes_in_overrides_of_the_model(load, overrides, part):
    with refused(part, "study.yaml"):
        load(changed(overrides=overrides))


def test_a_model_stands_in_no_training(load):
    with pytest.raises(InputError, match=r"unknown key 'training\.model'"):
        load(changed(training={"model": {"d_ffn": 8}}))


def test_set_names_variants_and_changes_the_hash(load):
    plain, variant = load().runs()[0], load(MINIMAL, ["training.lr=1e-3", "model.chunk_size=16"]).runs()[0]
    assert plain.run_id == "llama-14k-c64-s0"
    assert variant.run_id == "llama-14k-c64-s0-chunk_size16-lr0.001"
    assert variant.sets == ["training.lr=1e-3", "model.chunk_size=16"]
    assert variant.spec_hash != plain.spec_hash and variant.model["chunk_size"] == 16
    assert load(MINIMAL, ["model.context_length=128"]).runs()[0].run_id == "llama-14k-c128-s0"
    listed = load(MINIMAL, ["training.checkpoint_tokens=[256, 512]"]).runs()[0].run_id
    assert set(listed) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_.+")


@pytest.mark.parametrize(
    "change",
    ["jobs.parallel=3", "jobs.recompute=0.5", "evaluation.batch_rows=2", "fit.grid_points=9", "fit.flops=6nd"],
)
def test_what_does_not_decide_numbers_is_not_in_the_hash(load, change):
    plain, other = load(), load(MINIMAL | {"tracking": ["wandb"]}, [change])
    assert [(r.run_id, r.spec_hash) for r in plain.runs()] == [(r.run_id, r.spec_hash) for r in other.runs()]
    assert "tracking" not in plain.runs()[0].model_dump() and other.runs()[0].tracking == ["wandb"]
    assert other.sets == (change,) and other.runs()[0].sets == []


def test_processes_that_read_parts_of_sequences_are_not_in_the_hash(load):
    plain, parts = load(), load(MINIMAL, ["jobs.processes=4", "jobs.sequence_processes=2"])
    for run, other in zip(plain.runs(), parts.runs(), strict=True):
        assert (run.run_id, run.spec_hash) == (other.run_id, other.spec_hash)
        assert (run.sequence_processes, other.sequence_processes) == (1, 2)
        assert "sequence_processes" not in run.model_dump() and RunSpec(**other.model_dump()) == other
        assert [other.batch_split(n).is_even for n in (1, 2, 3, 4, 6, 8, 16)] == [0, 1, 0, 1, 0, 1, 0]
        split = other.batch_split(4)
        assert (split.rows, split.process_rows, split.micro_rows, split.passes) == (4, 2, 2, 1)


@pytest.mark.parametrize("change", ["corpus.seed=3", "training.threads=2", "grid.seeds=[4]", "training.eps=1e-9"])
def test_what_decides_numbers_is_in_the_hash(load, change):
    assert load().runs()[0].spec_hash != load(MINIMAL, [change]).runs()[0].spec_hash


def test_where_the_text_lies_is_not_in_the_hash(load):
    """What it is, is: by the corpus' fingerprint in run.json."""
    here, there = (load(changed(corpus={"source": source})).runs()[0] for source in ("/here", "/there"))
    assert here.spec_hash == there.spec_hash
    tokens = load(changed(corpus={"validation_tokens": 5000})).runs()[0]
    assert tokens.corpus.validation_fraction is None and tokens.spec_hash != load().runs()[0].spec_hash
    assert RunSpec.model_validate(json.loads(tokens.model_dump_json())) == tokens


def mixture(*sources, **more):
    return changed(corpus={"source": list(sources), **more})


def test_a_mixture_is_in_the_hash_by_its_weights(load):
    en, zh = {"source": "en", "weight": 2, "name": "e"}, {"source": ["zh", "more"], "weight": 1, "text_key": "content"}
    run = load(mixture(en, zh)).runs()[0]
    assert RunSpec.model_validate(json.loads(run.model_dump_json())) == run
    streams = run.corpus.settings().streams
    assert [(s.name, s.weight, s.source, s.text_key) for s in streams] == [
        ("e", 2, ("en",), "text"), ("zh", 1, ("zh", "more"), "content")]  # fmt: skip
    same = mixture(en | {"source": "/other/en", "weight": 4, "name": "x"}, zh | {"weight": 2.0})
    assert load(same).runs()[0].spec_hash == run.spec_hash != load(mixture("en", "zh")).runs()[0].spec_hash
    for other in (mixture(en, zh | {"weight": 1.5}), mixture(zh, en), mixture(en, zh | {"text_key": "t"})):
        assert load(other).runs()[0].spec_hash != run.spec_hash


def test_a_target_decides_how_much_text_a_run_reads(load):
    plain, run = load().runs()[0], load(changed(corpus={"target_tokens": 40_960})).runs()[0]
    assert plain.text_share == 1 and plain.corpus.target_tokens is None
    assert run.text_share == Fraction(run.n_steps * 256, 40_960) and run.n_steps == 40
    assert run.spec_hash != plain.spec_hash and run.corpus.settings() == plain.corpus.settings()
    longer = load(changed(corpus={"target_tokens": 40_960}, training={"n_tokens": 20_000})).runs()[0]
    assert longer.beginning != run.beginning and longer.text_share > run.text_share
    with pytest.raises(InputError, match=r"corpus.target_tokens: 9,999 are fewer than the 10,000 tokens of llama/14k"):
        load(changed(corpus={"target_tokens": 9_999})).runs()
    branches = {"schedule": "wsd", "branches": [5_000, 10_000], "n_tokens": None}
    with pytest.raises(InputError, match=r"corpus.target_tokens of llama/14k with training.branches"):
        load(changed(corpus={"target_tokens": 40_960}, training=branches)).runs()


def test_out_is_not_in_the_hash_and_a_spec_survives_json(load, tmp_path):
    study = load(MINIMAL, out=tmp_path / "elsewhere")
    assert study.directory == tmp_path / "elsewhere" / "tiny"
    assert load(MINIMAL, out="~/studies").directory == Path.home() / "studies" / "tiny"
    run = study.runs()[0]
    assert run.spec_hash == load().runs()[0].spec_hash
    again = RunSpec.model_validate(json.loads(json.dumps(run.model_dump(mode="json"))))
    assert again == run and again.spec_hash == run.spec_hash


def test_only(load):
    study = load(changed(grid={"seeds": [0, 1]}))
    assert len(study.runs()) == 8
    assert [run.run_id for run in study.runs("arch=tnl,size=25k,seed=1")] == ["tnl-25k-c64-s1"]
    assert len(study.runs("arch=tnl|llama,size=14k")) == 4
    for only, message in (
        ("arch=hgrn2", "this study has llama, tnl"),
        ("size=14", "this study has 14k, 25k"),
        ("seed=7", "this study has 0, 1"),
        ("archs=tnl", "did you mean 'arch'?"),
        ("model=tnl", "valid: arch, size, seed"),
        ("tnl", "write it as key=value, of arch, size and seed"),
        ("", "write it as key=value, of arch, size and seed"),
        ("arch=tnl,arch=llama", "names arch twice; write arch=one|another"),
    ):
        with pytest.raises(InputError, match="--only") as error:
            study.runs(only)
        assert message in str(error.value)


def test_every_size_may_have_its_own_seeds(load):
    sizes = load(MINIMAL).grid.sizes
    study = load(changed(grid={"seeds": [], "extra_seeds": {size: [3 * i, 3 * i + 1] for i, size in enumerate(sizes)}}))
    assert [run.seed for run in study.runs() if run.size == sizes[1]][:2] == [3, 4]


def test_extra_seeds(load):
    study = load(changed(grid={"extra_seeds": {"25k": [1]}}))
    assert [run.run_id for run in study.runs("arch=tnl")] == ["tnl-14k-c64-s0", "tnl-25k-c64-s0", "tnl-25k-c64-s1"]
    assert len(load(changed(grid={"extra_seeds": {"25k": [1]}}), ["grid.seeds=[0, 1]"]).runs("arch=tnl")) == 4
    with pytest.raises(InputError, match=r"study.yaml: grid.extra_seeds.25k: 0 is one of grid.seeds too: leave one"):
        load(changed(grid={"extra_seeds": {"25k": [1, 0]}}))


def test_one_range_stands_for_all(load):
    assert load(changed(fit={"range": [1e9, 1e12]})).fit.range["tnl"] == [1e9, 1e12]
    assert load(changed(fit={"range": {"tnl": ["1e9", 1e12]}})).fit.range == {"tnl": [1e9, 1e12]}


READ_NOWHERE = "which is not given: add that, or leave it out"
HUGE = "1" + 320 * "0"
BAD = [
    (changed(training={"lr_law": "r.json", "lr": 1e-3}), f"training.lr_law is read with lr: law alone, {READ_NOWHERE}"),
    (
        changed(training={"n_checkpoints": 3, "checkpoint_tokens": [5000]}),
        "training.n_checkpoints means nothing beside checkpoint_tokens: leave one of them out",
    ),
    (
        changed(fit={"range_flops": "paper"}),
        "fit.range_flops: is the convention of fit.range, which is not given: add it",
    ),
    (
        changed(training={"log_every": 1e18}),
        "training.log_every=1000000000000000000 of llama-14k-c64-s0 is more than its",
    ),
    (
        changed(training={"n_tokens": f"{HUGE}N"}),
        "training.n_tokens: must be a whole number as 2e9 or 2B, a multiple",
    ),
    (changed(training={"n_tokens": "9" * 17 + "N"}), "parameters are more than 1e+18 tokens: plan fewer"),
    ({**MINIMAL, "sweep": {"tokens": ["10N", "10.0N"]}}, "sweep.tokens: names '10.0N' twice"),
    (changed(training={"lrr": 1}), "unknown key 'training.lrr' (did you mean 'lr'?)"),
    ({**MINIMAL, "trainig": {}}, "unknown key 'trainig' (did you mean 'training'?)"),
    (
        changed(overrides={"by_size": {"14k": {"n_token": 5}}}),
        "'overrides.by_size.14k.n_token' (did you mean 'n_tokens'?)",
    ),
    (changed(overrides={"by_run": {"tnl-14k": {}}}), "write arch/size"),
    (changed(model={"d_modell": 8}), "unknown key 'model.d_modell' (did you mean 'd_model'?)"),
    (changed(grid={"archs": ["hgrn"]}), "unknown architecture 'hgrn' (did you mean 'hgrn2'?)"),
    (changed(grid={"seeds": []}), "grid: seeds: must name at least one, or extra_seeds must name seeds of"),
    (changed(training={"n_tokens": 0}), "training.n_tokens: must be greater than 0, not 0"),
    (changed(training={"n_tokens": 1.5}), "training.n_tokens: must be a whole number"),
    (changed(training={"n_tokens": None}), "training.n_tokens is missing for llama/14k"),
    (changed(training={"lr": float("nan")}), "training.lr: must be a valid number, or the word law, not '.nan'"),
    (changed(training={"batch_tokens": 100}), "is not a multiple of model.context_length=64"),
    (changed(training={"warmup_tokens": 10_000}), "would end before it reaches its learning rate"),
    (changed(training={"micro_batch_tokens": 192}), "must divide batch_tokens=256"),
    (changed(jobs={"recompute": 1.5}), "jobs.recompute: must be true, false, or a number from 0 to 1, not 1.5"),
    (changed(jobs={"processes": 3}), "4 sequences do not split over jobs.processes=3 and micro-batches of 4"),
    (changed(jobs={"sequence_processes": 2}), "jobs: sequence_processes=2 must divide processes=1"),
    (
        changed(jobs={"processes": 16, "sequence_processes": 2}),
        "split over jobs.processes=16, 2 to a sequence, and micro-batches of 4",
    ),
    (
        changed(jobs={"processes": 3, "sequence_processes": 3}),
        "jobs.sequence_processes=3 of llama/14k does not divide model.context_length=64: change one of them",
    ),
    (
        changed(jobs={"processes": 4, "sequence_processes": 4}),
        "n_heads=2 of llama do not split over 4 processes, which exchange heads: change one of them",
    ),
    (
        changed(jobs={"processes": 2, "sequence_processes": 2}, training={"zero_stage": 2}),
        "in which each waits for the next one's state: take stage 0 or 1",
    ),
    (changed(training={"precision": "bf61"}), "must be 'fp32' or 'bf16', not 'bf61' (did you mean 'bf16'?)"),
    (changed(training={"betas": [0.9]}), "training.betas: must be two numbers, not 1"),
    (changed(training={"checkpoint_tokens": [512, 256]}), "each larger than the one before"),
    (changed(model={"d_model": 25, "n_heads": 2}), "d_model=25 is not divisible by model.n_heads=2"),
    (changed(model={"lower_bound": True}), "model.lower_bound: must be a valid string, not True"),
    (changed(model={"vocab_size": 100}), "smaller than the 257 tokens of bytes"),
    (changed(corpus={"source": "a\0b"}), "holds a control character"),
    (
        changed(corpus={"source": [{"weight": 2}, {"source": "b", "weight": 1}]}),
        "key 'corpus.source.0.source' is missing",
    ),
    (
        changed(corpus={"source": [{"sourc": "b", "weight": 1}]}),
        "unknown key 'corpus.source.0.sourc' (did you mean 'source'?)",
    ),
    (
        changed(corpus={"source": [{"source": "b", "weight": 1, "q": 1}]}),
        "'corpus.source.0.q' (valid: source, weight, text_key, name)",
    ),
    (
        {**MINIMAL, "sweep": {"rates": {"frist": 1e-3, "factor": 2, "count": 5}}},
        "sweep.rates: frist: unknown key (did you mean 'first'?)",
    ),
    (
        changed(corpus={"source": "listop:0:4800"}),
        "corpus.source: 'listop:0:4800' is no labelled set (did you mean 'listops'?)",
    ),
    (
        changed(corpus={"source": "IMDB:a/b", "tokenizer": "ids"}),
        "corpus.source: 'IMDB:a/b' is no labelled set (did you mean 'imdb'?)",
    ),
    (
        changed(corpus={"source": ["a.txt", "listops:0"]}),
        "corpus.source: 'listops:0' is a labelled set, which stands alone: name one source",
    ),
    (
        changed(corpus={"source": [{"source": "listops:0", "weight": 1}]}),
        "corpus.source: 'listops:0' is a labelled set, which stands alone",
    ),
    (
        changed(corpus={"source": "labelled:nowhere"}),
        "corpus.source: nowhere: no labelled set is here",
    ),
    (changed(corpus={"source": "images:a:1000"}), "corpus.source: images:a:1000 does not end in :CLASSES:SIZE"),
    (
        {**MINIMAL, "evaluation": {"published": {"A": 0}}},
        "evaluation.published.A: 0 is no perplexity: write at least 1",
    ),
    (changed(corpus={"source": [{"source": "b"}]}), "key 'corpus.source.0.weight' is missing: add it"),
    (changed(corpus={"source": ["a", {"source": "b", "weight": 1}]}), "'a' has no weight and other sources have one"),
    (changed(corpus={"source": [{"source": "b", "weight": 1, "name": "a b"}]}), "corpus.source: name 'a b' of b"),
    ({**MINIMAL, "name": "x" * 101}, "becomes the name of a directory"),
    (changed(corpus={"validation_tokens": 5, "validation_fraction": 0.1}), "corpus: give validation_fraction or"),
    (changed(corpus={"validation_fraction": None}), "corpus: give validation_fraction or validation_tokens, and null"),
    (changed(fit={"range": [1e16, 1e15]}), "fit.range: must be [smallest, largest] compute in FLOP, not [1e+16, "),
    (
        {**MINIMAL, "name": "a/b"},
        "name: 'a/b' becomes the name of a directory: write letters, digits,",
    ),
    ({**MINIMAL, "name": 2026}, "name: must be a valid string, not 2026: write it in quotes"),
    ("name: " + 3000 * "[", "is nested too deeply to be read"),
    ({key: value for key, value in MINIMAL.items() if key != "corpus"}, "key 'corpus' is missing"),
    (changed(training={"lrr": 1, "n_tokens": 0}), "(and 1 more)"),
    ("", "holds no study"),
    ("name: a\nname: b\n", "line 2: key 'name' is given twice"),
    ("name: [\n", "line"),
    ("[a]: 1\n", "line 1: a key must be a word"),
    (changed(grid={"seeds": [2**64]}), "grid.seeds.0: must be less than"),
]


@pytest.mark.parametrize(("content", "part"), BAD, ids=[part for _, part in BAD])
def test_every_mistake_is_one_line_with_file_and_key(load, content, part):
    with refused(part, "study.yaml"):
        load(content)


BAD_SETS = [
    ("training.lrr=1", "unknown key 'training.lrr' (did you mean 'lr'?)"),
    ("trainig.lr=1", "unknown section 'trainig' (did you mean 'training'?)"),
    ("lr=1e-3", "unknown section 'lr' (did you mean 'training.lr'?)"),
    ("training.lr", "write it as section.key=value"),
    ("training.betas.0=1", "training.betas has no keys of its own"),
    ("training.lr=-1", "training.lr: must be greater than 0, not -1"),
    ("training.lr=[1", "correct the YAML"),
    ("model.d_model=25", "not divisible"),
    ("grid.extra_seeds.99k=[1]", "grid.extra_seeds.99k: this study has no run of 99k"),
]


@pytest.mark.parametrize(("change", "part"), BAD_SETS, ids=[change for change, _ in BAD_SETS])
def test_every_mistake_of_set_is_one_line(load, change, part):
    content = changed(model={"n_heads": 2}) if "not divisible" in part else MINIMAL
    with refused(part, "--set"):
        load(content, [change])


def test_text_by_a_name_like_a_sets_is_text(load, tmp_path, monkeypatch):
    """Where it is there, or looks more like a source of text."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "image:a").write_text("text")
    for source in ("image:a", "stdlb:", "my/imdb:a", "list.txt", "https://imdb"):
        assert load(changed(corpus={"source": source})).corpus.tokenizer == "bytes"


def test_a_word_that_ends_in_a_colon_is_text(load):
    """YAML alone reads a mapping."""
    assert load(MINIMAL, ["corpus.source=stdlib:"]).corpus.source == ["stdlib:"]


def test_set_reaches_nested_tables(load):
    study = load(MINIMAL, ["grid.extra_seeds.14k=[5]", "fit.range.tnl=[1e9, 1e10]", "grid.archs=[tnl]"])
    assert [run.run_id for run in study.runs()] == ["tnl-14k-c64-s0", "tnl-14k-c64-s5", "tnl-25k-c64-s0"]
    assert study.fit.range == {"tnl": [1e9, 1e10]}


def test_a_range_stays_in_the_flop_it_was_stated_in(load):
    fit = changed(fit={"flops": "paper", "range": [1e9, 1e12]})
    assert load(fit).fit.range_flops is None
    other = load(fit, ["fit.flops=6nd"])
    assert (other.fit.flops, other.fit.range_flops) == ("6nd", "paper")
    assert load(MINIMAL, ["fit.flops=6nd"]).fit.range_flops is None  # there is no range
    assert load(changed(fit={"range": [1e9, 1e12]}), ["fit.flops=6nd"]).fit.range_flops == "exact"  # the default's
    assert load(fit, ["fit.flops=6nd", "fit.range={tnl: [1e9, 1e12]}"]).fit.range_flops is None
    sets = ["fit.flops=6nd", "fit.range.tnl=[1e9, 1e12]", "fit.range_flops=exact"]
    assert load(MINIMAL, sets).fit.range_flops == "exact"
    with pytest.raises(InputError, match=r"--set fit\.flops and --set fit\.range\.tnl: say what FLOP"):
        load(changed(fit={"range": {"tnl": [1e9, 1e12]}}), ["fit.flops=6nd", "fit.range.tnl=[1e9, 1e11]"])


def test_results_of_a_changed_fit_or_grid_lie_beside(load):
    assert load().results.name == "results" and load(MINIMAL, ["jobs.parallel=2"]).report.name == "report"
    assert load(MINIMAL, ["fit.flops=6nd", "grid.seeds=[0, 1]"]).results.name == "results-flops6nd-seeds0_1"


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9\n")
    for path, message in (
        (tmp_path / "none.yaml", "no such study file"),
        (tmp_path, "is a directory"),
        (tmp_path / "latin.yaml", "UTF-8"),
    ):
        with pytest.raises(InputError, match=message):
            load_study(path)
    with pytest.raises(InputError, match=r"no such study file \(did you mean 'quickstart'\?\)"):
        load_study("quickstar")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-study.yaml").write_text(yaml.safe_dump(MINIMAL))
    for slip in ("my-stduy.yaml", "my-study"):
        with pytest.raises(InputError, match=r"did you mean 'my-study\.yaml'\?"):
            load_study(slip)
    with pytest.raises(InputError, match=r"other\.yaml: no such study file \(studies of the package"):
        load_study("other.yaml")
    with pytest.raises(InputError, match="no such study file"):
        load_study("x" * 5000)


MIXED = changed(grid={"archs": ["llama", "hgrn2", "hgrn1"], "sizes": ["14k"]})


def hashes(study):
    return {run.arch: run.spec_hash for run in study.runs()}


@pytest.mark.parametrize(
    ("change", "value", "reached"),
    [
        ("lower_bound: off", "off", {"hgrn2", "hgrn1"}),  # a YAML 1.1 boolean
        ("lower_bound: 'off'", "off", {"hgrn2", "hgrn1"}),
        ("output_gate: off", False, {"hgrn2", "hgrn1"}),
        ("hgrn1_state: narrow", "narrow", {"hgrn1"}),
        ("input_gate: none", "none", {"hgrn2", "hgrn1"}),
        ("chunk_size: 16", 16, {"llama", "hgrn2", "hgrn1"}),
    ],
)
def test_a_change_of_the_model_reaches_the_architectures_it_means_something_to(load, change, value, reached):
    """In the file, and by --set, where the runs it does not reach stay what they are: same name, same hash."""
    plain, key = load(MIXED), change.partition(":")[0]
    text = yaml.safe_dump(MIXED)
    assert text.count("model:\n") == 1
    text = text.replace("model:\n", f"model:\n  {change}\n")
    study = load(text)
    assert {arch for arch, spec_hashes in hashes(study).items() if spec_hashes != hashes(plain)[arch]} == reached
    assert [run.run_id for run in study.runs()] == [run.run_id for run in plain.runs()]
    variants = load(MIXED, [f"model.{change.replace(': ', '=')}"])
    assert hashes(variants) == hashes(study)
    for run, before in zip(variants.runs(), plain.runs(), strict=True):
        if run.arch in reached:
            assert run.model[key] == value and run.run_id == f"{before.run_id}-{key}{value}"
            assert run.sets == [f"model.{change.replace(': ', '=')}"]
        else:
            assert run == before
    assert variants.is_variant and not plain.is_variant
    assert load(text, [f"model.{change.replace(': ', '=')}"]).runs() == study.runs()  # the file says so already


def test_a_change_to_what_is_so_already_makes_no_other_run(load):
    """Of the file, of a default, of an override; beside one that does change something."""
    content = changed(training={"lr": 2e-3}, overrides={"by_arch": {"tnl": {"lr": 1e-3}}})
    plain = load(content)
    for same in (
        "training.batch_tokens=256",
        "training.weight_decay=0.1",
        "model.context_length=64",
        "model.n_layers=2",
    ):
        study = load(content, [same])
        assert study.runs() == plain.runs() and not study.is_variant
    study = load(content, ["training.lr=1e-3", "training.batch_tokens=256"])
    assert [run.run_id for run in study.runs()] == [
        f"{run.run_id}-lr0.001" if run.arch == "llama" else run.run_id for run in plain.runs()
    ]
    assert [run.sets for run in study.runs()] == [
        ["training.lr=1e-3"] if run.arch == "llama" else [] for run in plain.runs()
    ]
    assert study.is_variant


def test_a_change_may_mend_what_the_file_alone_cannot_be(load):
    content = changed(model={"n_heads": 3})
    with pytest.raises(InputError):
        load(content)
    assert all(run.model["n_heads"] == 2 and run.sets for run in load(content, ["model.n_heads=2"]).runs())


def test_several_changes_at_once(load):
    changes = ["model.lower_bound=off", "training.lr=1e-3", "model.hgrn1_state=narrow"]
    assert [run.run_id for run in load(MIXED, changes).runs()] == [
        "llama-14k-c64-s0-lr0.001",
        "hgrn2-14k-c64-s0-lower_boundoff-lr0.001",
        "hgrn1-14k-c64-s0-hgrn1_statenarrow-lower_boundoff-lr0.001",
    ]
    assert load(MIXED, changes).runs()[0].sets == ["training.lr=1e-3"]


@pytest.mark.parametrize("by_set", [False, True])
def test_a_change_that_means_something_to_none_of_the_grid_is_refused(load, by_set):
    content = MINIMAL if by_set else changed(model={"lower_bound": "only"})
    with pytest.raises(InputError) as error:
        load(content, ["model.lower_bound=only"] if by_set else [])
    message = str(error.value)
    assert "model.lower_bound means nothing to llama, tnl, only to hgrn2, hgrn1: leave it out" in message
    assert "study.yaml" in message and ("--set" in message) == by_set and "\n" not in message


def test_a_bad_plugin_is_named_before_what_needs_it(load):
    for value, message in (
        (["no_such_plugin"], "plugins: plugin 'no_such_plugin' is no module that Python finds"),
        ("no_such_plugin", "plugins: plugin 'no_such_plugin' is no module that Python finds"),
        (["json"], "plugins: plugin 'json' registers no architecture"),
        ([3], "plugins.0: must be a valid string"),
        (3, "plugins: must be a valid list"),
        (["venv.__main__"], "plugins: plugin 'venv.__main__' cannot be imported: SystemExit"),
    ):
        with refused(message, "study.yaml"):
            load({**changed(grid={"archs": ["eighth"]}), "plugins": value}, own=True)


def test_a_field_at_its_default_is_not_in_the_hash(load):
    """So that a new key, which older files do not have, changes no hash."""
    plain, run = load().runs()[0], load(MINIMAL, ["training.eps=1e-8", "corpus.text_key=text"]).runs()[0]
    assert run.spec_hash == plain.spec_hash
    stored = plain.model_dump(mode="json")
    for section, key in (("training", "eps"), ("corpus", "clean"), ("model", "residual_dtype")):
        del stored[section][key]
    assert RunSpec.model_validate(stored).spec_hash == plain.spec_hash


def test_a_plugin_is_part_of_its_runs_hash(load):
    run = load().runs()[0]
    assert run.plugins == [] and run.model_copy(update={"plugins": ["mine"]}).spec_hash != run.spec_hash


def test_a_corpus_is_what_the_data_package_takes_by_default_too():
    """The section's defaults are those of data.settings; the others are the study's own."""
    settings = Corpus(source="stdlib:").settings()
    assert settings == CorpusSettings(source="stdlib:")
    assert set(Corpus.model_fields) - {"augment", "epochs", "target_tokens"} == {
        field.name for field in dataclasses.fields(CorpusSettings)
    }


def test_the_settings_of_a_fit_are_its_section():
    """As fits.json holds them they open again, also with an architecture whose plugin is not loaded."""
    settings = FitSettings(range={"somebody's": (1e10, 1e12)}, optimum="envelope")
    assert FitSettings(**json.loads(json.dumps(settings.to_dict()))) == settings
    section = settings.model_dump(mode="json", include=set(Fit.model_fields))
    assert {name: settings.to_dict()[name] for name in section} == section
    assert set(section) == set(Fit.model_fields) - {"source"}  # which is there where it is given
