"""Axes of a grid: the runs that follow from them, their names, what --only and --set do to them, and each mistake."""

import json

import pytest
import yaml

from arch.errors import InputError
from scaling.study.plan import plan
from scaling.study.spec import load_study
from tests.scaling.study.test_spec import MINIMAL, write

RATES = {"training.lr": ["1e-3", 2e-3]}


@pytest.fixture
def load(tmp_path):
    def of(axes, sets=(), only=None, nuisance=None, **sections):
        grid = {**MINIMAL["grid"], "axes": axes} | ({"nuisance": nuisance} if nuisance else {})
        content = yaml.safe_dump({**MINIMAL, "grid": grid, **sections}, sort_keys=False)
        return load_study(write(tmp_path, content), list(sets), None, only)

    return of


def names(study, only=None):
    return [run.run_id for run in study.runs(only)]


def test_axes_are_crossed_with_sizes_and_seeds_and_named(load):
    runs = load(RATES | {"model.context_length": [32, 64]}).runs()
    assert len(runs) == 2 * 2 * 4
    assert [run.run_id for run in runs[:4]] == [
        f"llama-14k-c{context}-s0-lr{lr}" for lr in (0.001, 0.002) for context in (32, 64)
    ]
    for run in runs:
        assert run.point == {"training.lr": run.training.lr, "model.context_length": run.context_length}
    assert len({run.spec_hash for run in runs}) == len(runs)


def test_a_point_has_the_numbers_of_a_study_that_says_them(load, tmp_path):
    (run,) = load(RATES | {"model.norm": ["rms"]}).runs("arch=tnl,size=14k,lr=2e-3")
    training, model = {**MINIMAL["training"], "lr": 2e-3}, {**MINIMAL["model"], "norm": "rms"}
    plain = load_study(write(tmp_path, {**MINIMAL, "training": training, "model": model}))
    (same,) = plain.runs("arch=tnl,size=14k")
    assert run.spec_hash == same.spec_hash and run.run_id == f"{same.run_id}-lr0.002-normrms"


def test_points_with_names(load, tmp_path):
    """A name stands for its fields in ids, labels and --only; what it leaves out is the study's own."""
    named = {"plain": {}, "fast": {"training.lr": 2e-3, "model.norm": "rms"}, "open": {"model.decay": "none"}}
    study = load({"change": named}, training={**MINIMAL["training"], "lr": 1e-3})
    assert names(study, "size=14k") == [
        *("llama-14k-c64-s0-changeplain", "llama-14k-c64-s0-changefast"),  # decay means nothing to it: the same run
        *(f"tnl-14k-c64-s0-change{name}" for name in named),
    ]
    plain, fast, opened = study.runs("arch=tnl,size=14k")
    assert (fast.training.lr, fast.model["norm"], plain.training.lr) == (2e-3, "rms", 1e-3)
    assert (plain.model["decay"], opened.model["decay"]) == ("independent", "none")
    assert json.loads(fast.model_dump_json())["point"] == {"change": "fast"}
    assert names(study, "arch=tnl,size=14k,change=open|plain") == [plain.run_id, opened.run_id]
    (same,) = load_study(write(tmp_path, {**MINIMAL, "training": {**MINIMAL["training"], "lr": 1e-3}})).runs(
        "arch=tnl,size=14k"
    )
    assert same.spec_hash == plain.spec_hash
    changed = load({"change": named}, ["training.lr=5e-4"]).runs("arch=tnl,size=14k,change=fast")[0]
    assert changed.training.lr == 5e-4 and changed.run_id == "tnl-14k-c64-s0-changefast-lr0.0005"


def test_a_common_field_that_an_architecture_ignores_gives_it_one_run(tmp_path):
    """Mamba has no MLP, and HGRN1 no heads: with each of their numbers the same model would be trained again."""
    archs = ["hgrn1", "mamba2", "mamba1", "tnl"]

    def runs(axes):
        study = load_study(write(tmp_path, {**MINIMAL, "grid": {"archs": archs, "sizes": ["14k"], "axes": axes}}))
        planned_runs = study.runs()
        points = {arch: [run.point for run in planned_runs if run.arch == arch] for arch in archs}
        return points, plan(study, planned_runs).notes

    points, notes = runs({"model.d_ffn": [32, 64], "model.n_heads": [1, 2, 4]})
    assert {arch: len(values) for arch, values in points.items()} == {"hgrn1": 2, "mamba2": 3, "mamba1": 1, "tnl": 6}
    assert points["hgrn1"] == [{"model.d_ffn": 32}, {"model.d_ffn": 64}] and points["mamba1"] == [{}]
    assert notes == [
        "axis model.d_ffn means nothing to mamba2, mamba1: one run there",
        "axis model.n_heads means nothing to hgrn1, mamba1: one run there",
    ]


def test_a_field_that_means_nothing_to_an_architecture_gives_it_one_run(load):
    study = load(RATES | {"model.decay_slopes": ["paper", "fixed"]})
    runs = {arch: [run for run in study.runs() if run.arch == arch] for arch in ("llama", "tnl")}
    assert len(runs["llama"]) == 4 and len(runs["tnl"]) == 8
    assert all("model.decay_slopes" not in run.point for run in runs["llama"])
    planned = plan(study, study.runs())
    assert planned.notes == ["axis model.decay_slopes means nothing to llama: one run there"]
    assert planned.runs[0].point == {"training.lr": 1e-3}


def test_only_takes_the_axes(load):
    study = load(RATES | {"model.context_length": [32, 64]})
    some = ["llama-14k-c32-s0-lr0.001", "llama-14k-c64-s0-lr0.001"]
    for only in ("arch=llama,size=14k,lr=1e-3", "training.lr=0.001,arch=llama,size=14k"):
        assert names(study, only) == some
    assert names(study, "arch=llama,size=14k,lr=1e-3|2e-3,context_length=64") == [
        "llama-14k-c64-s0-lr0.001",
        "llama-14k-c64-s0-lr0.002",
    ]
    with pytest.raises(InputError, match=r"no run with lr=3 \(this study has 0.001, 0.002\)"):
        study.runs("lr=3")
    with pytest.raises(InputError, match=r"unknown key 'll' .*\blr\b"):
        study.runs("ll=3")
    with pytest.raises(InputError, match=r"names training.lr twice"):
        study.runs("lr=1e-3,training.lr=2e-3")


def test_set_wins_over_axes(load):
    plain = load(RATES)
    inside = load(RATES, ["training.lr=2e-3"])  # a value of the axis: the file's own runs
    assert names(inside) == [name for name in names(plain) if name.endswith("lr0.002")] and not inside.is_variant
    outside = load(RATES, ["training.lr=5e-3"])
    assert names(outside, "arch=tnl") == ["tnl-14k-c64-s0-lr0.005", "tnl-25k-c64-s0-lr0.005"]
    assert all(run.sets and run.point == {"training.lr": 5e-3} for run in outside.runs())
    more = load(RATES, ["grid.axes.training.lr=[1e-3, 5e-3]", "grid.nuisance.training.lr=best"])
    assert names(more, "arch=tnl,size=14k") == ["tnl-14k-c64-s0-lr0.001", "tnl-14k-c64-s0-lr0.005"]
    assert not more.is_variant and more.results != plain.results and more.grid.nuisance == {"training.lr": "best"}


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"training.lr": [-1]}, r"grid.axes.training.lr: must be greater than 0, not -1"),
        ({"training.lr": []}, r"grid.axes.training.lr: must be a list of at least one value, not \[\]"),
        ({"training.lr": [1, 1.0]}, "grid.axes.training.lr: names 1.0 twice"),
        ({"training.lrr": [1]}, r"grid.axes.training.lrr: unknown field 'lrr' of training \(did you mean 'lr'\?\)"),
        ({"training.max_steps": [1, 2]}, "grid.axes.training.max_steps: is no axis: .* vary training.n_tokens"),
        ({"model.arch": ["tnl"]}, "grid.axes.model.arch: is no axis: the architectures are grid.archs"),
        ({"model.input_gate": ["tied", "none"]}, "model.input_gate means nothing to llama, tnl, only to hgrn2, hgrn1"),
        ({"model.norm": ["rms", "odd"]}, "llama/14k, norm=odd: model.norm must be one of"),
        ({"corpus.source": ["a"]}, "grid.axes.corpus.source: a study has one corpus: write a study file for each"),
        ({"depth": [1]}, "grid.axes.depth: 'depth' is no field of a section, and holds no points"),
        ({"depth": {"training.lr": [1], "model.n_layers": [1]}}, "holds no points with names: write training.FIELD"),
        (
            {"a": {"b": {"training.lr": 1}}, "training.lr": [2]},
            "grid.axes.training.lr: is an axis twice, here and in grid.axes.a",
        ),
        ({"a": {"b c": {"training.lr": 1}}}, "grid.axes.a: 'b c' is no name of a point: letters, digits, _, . and"),
        ({"a": {"b": {"training.lr": -1}}}, "grid.axes.a.b.training.lr: must be greater than 0, not -1"),
        ({"a": {"b": {}, "c": {}}}, "grid.axes.a: c and b are the same point"),
    ],
)
def test_mistakes_are_one_line(load, axes, message):
    with pytest.raises(InputError, match=message) as caught:
        load(axes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("nuisance", "message"),
    [
        ({"lr": "best"}, r"grid.nuisance.lr: is no axis of this grid \(valid: training.lr, model.norm, train"),
        ({"training.lr": "worst"}, "grid.nuisance.training.lr: must be 'best'"),
        ({"training.n_tokens": "best"}, "grid.nuisance.training.n_tokens: the length of a run is the D of the laws"),
        ({"training.reset_at_documents": "best"}, "losses with and without it have other text before a token: no nui"),
    ],
)
def test_a_nuisance_is_an_axis_that_can_be_resolved(load, nuisance, message):
    axes = RATES | {"model.norm": ["rms", "srms"], "training.n_tokens": ["20N", 10_000]}
    axes |= {"training.reset_at_documents": [False, True]}
    with pytest.raises(InputError, match=message):
        load(axes, nuisance=nuisance)


SAME = """
name: same
corpus: {source: "stdlib:"}
grid:
  archs: [llama]
  sizes: [6k]
  axes: {AXES}
training: {n_tokens: 200_000, batch_tokens: 1024, lr: 1e-3MORE}
"""


def same(tmp_path, axes, more="", sets=None):
    (tmp_path / "same.yaml").write_text(SAME.replace("AXES", axes).replace("MORE", more))
    return load_study(tmp_path / "same.yaml", sets)


def test_points_that_are_one_run_are_trained_once(tmp_path):
    runs = same(tmp_path, "training.n_tokens: [10_000, 50_000, 80_000]", ", max_tokens: 40_000").runs()
    assert [run.run_id for run in runs] == ["llama-6k-c256-s0-n_tokens10000", "llama-6k-c256-s0-n_tokens50000"]
    assert runs[1].notes == [
        "llama-6k-c256-s0-n_tokens80000 is llama-6k-c256-s0-n_tokens50000 to the bit: one run",
    ]
    branched = SAME.replace("n_tokens: 200_000", "schedule: wsd, branches: [40450, 40451]").replace("MORE", "")
    (tmp_path / "same.yaml").write_text(branched.replace("axes: {AXES}", "").replace("  axes: AXES\n", ""))
    trunk, branch = load_study(tmp_path / "same.yaml").runs()
    assert list(trunk.branches) == [branch.run_id] and "to the bit: one run" in trunk.notes[-1]


def test_results_of_fewer_points_lie_beside_the_studys_own(tmp_path):
    axes = "training.lr: [1e-3, 2e-3]"
    whole, part = same(tmp_path, axes), same(tmp_path, axes, sets=["training.lr=1e-3"])
    assert len(part.runs()) == 1 and not part.is_variant
    assert part.results != whole.results and part.results.name == "results-lr0.001"
    assert part.report.name == "report-lr0.001"


@pytest.mark.parametrize("axes", ["1: [2]", "1.5: [2]", "true: [2]", "x: {1: [2]}"])
def test_an_axis_that_is_no_word(tmp_path, axes):
    with pytest.raises(InputError, match=r"a key must be a word|is no field of .*: write training\.FIELD"):
        same(tmp_path, axes)


def test_an_axis_that_only_endings_read_is_refused_beside_branches(tmp_path):
    branched = SAME.replace("n_tokens: 200_000", "schedule: wsd, branches: [40_000, 80_000]").replace("MORE", "")
    for axes in ("training.decay_shape: [linear, sqrt]", "training.decay_fraction: [0.1, 0.2]"):
        (tmp_path / "same.yaml").write_text(branched.replace("AXES", axes))
        with pytest.raises(InputError, match=r"are one trunk, trained twice: .* give it one value"):
            load_study(tmp_path / "same.yaml")
    (tmp_path / "same.yaml").write_text(branched.replace("AXES", "training.lr: [1e-3, 2e-3]"))
    assert sum(bool(run.branches) for run in load_study(tmp_path / "same.yaml").runs()) == 2


def test_steps_that_no_batch_reaches_are_a_warning(tmp_path):
    first, second = same(tmp_path, "training.n_tokens: [50_000, 200_000]", ", min_steps: 500").runs()
    assert first.notes[0].endswith(f"{first.n_steps} steps of 256 tokens, a batch that cannot be halved")
    assert first.n_steps < 500 <= second.n_steps and not second.notes


def test_only_takes_lists(load):
    study = load({"training.betas": [[0.9, 0.95], [0.9, 0.99]]})
    runs = study.runs("betas=[0.9,0.95],arch=llama,size=14k")
    assert [list(run.training.betas) for run in runs] == [[0.9, 0.95]]
    assert len(study.runs("betas=[0.9, 0.95]|[0.9,0.99],arch=llama,size=14k")) == 2
