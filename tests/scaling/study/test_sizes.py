"""Sizes that a study file describes itself: shapes."""

import json

import pytest
import yaml
from typer.testing import CliRunner

from arch.errors import InputError
from arch.presets import preset
from flops import count_params, train_flops_per_token
from scaling.cli.flops import app as flops_app
from scaling.cli.main import app
from scaling.study.run import RunSpec
from scaling.study.spec import load_study
from tests.commands import refused

SHAPE = {"n_layers": 4, "d_model": 64, "n_heads": 4, "d_ffn": 168}
ARCHS = ["llama", "tnl", "hgrn2", "cosformer2", "hgrn1", "mamba1", "mamba2"]
STUDY = {
    "name": "shapes",
    "corpus": {"source": "synthetic:0:100000"},
    "grid": {"archs": ARCHS, "sizes": ["14k", {"0.2m": SHAPE}]},
    "model": {"context_length": 64},
    "training": {"n_tokens": 10_000, "batch_tokens": 256},
}


@pytest.fixture
def study(tmp_path):
    def write(**sections):
        path = tmp_path / "study.yaml"
        path.write_text(yaml.safe_dump(STUDY | {"out": str(tmp_path)} | sections, sort_keys=False))
        return path

    return write


@pytest.fixture
def load(study):
    return lambda sizes, archs=None, sets=None, **sections: load_study(
        study(grid={"archs": archs or ARCHS, "sizes": sizes}, **sections), sets
    )


def test_a_shape_is_a_preset_of_the_files_own(load):
    """What it says holds for all; an architecture's rule, then what stands below its name, then model and overrides
    change it. A preset's numbers written as a shape are that preset, in every architecture."""
    runs = {run.arch: run for run in load([{"0.2m": SHAPE}]).runs()}
    assert {arch: run.run_id for arch, run in runs.items()} == {arch: f"{arch}-0.2m-c64-s0" for arch in ARCHS}
    fields = ("n_layers", "d_model", "n_heads", "d_ffn")
    shapes = {arch: tuple(run.model[field] for field in fields) for arch, run in runs.items()}
    plain = (4, 64, 4, 168)
    assert shapes == dict.fromkeys(["llama", "tnl", "hgrn2", "cosformer2"], plain) | {
        "hgrn1": (4, 64, 4, 128),  # its mixer has 7 d^2: g = 2 d
        "mamba1": (8, 64, 2, 168),  # no FFN: twice the layers
        "mamba2": (8, 64, 2, 168),  # and heads of 64 of the 128 inner channels
    }
    assert runs["mamba2"].model["ssm_state"] == 32 and runs["tnl"].model["decay_slopes"] == "fixed"
    paper = {"n_layers": 6, "d_model": 512, "n_heads": 4, "d_ffn": 1536}
    for run in load([{"mine": paper}], model={"context_length": 256}).runs():
        assert run.config == preset(run.arch, "70m", vocab_size=257, context_length=256)

    changed = SHAPE | {
        "mamba2": {"n_layers": 5, "d_model": 96, "ssm_state": 16},
        "hgrn1": {"d_ffn": 160},
        "tnl": {"decay_slopes": "paper"},
    }
    overrides = {
        "by_size": {"0.2m": {"lr": 1e-3, "model": {"norm": "rms", "d_ffn": 176}}},
        "by_run": {"hgrn1/0.2m": {"model": {"d_ffn": 152}}},
    }
    model = {"context_length": 128, "n_layers": 3}
    archs = ["llama", "tnl", "hgrn1", "mamba2"]
    runs = {run.arch: run for run in load([{"0.2m": changed}], archs, overrides=overrides, model=model).runs()}
    assert {arch: tuple(run.model[field] for field in fields) for arch, run in runs.items()} == {
        "llama": (3, 64, 4, 176),
        "tnl": (3, 64, 4, 176),
        "hgrn1": (3, 64, 4, 152),
        "mamba2": (3, 96, 3, 176),  # heads follow the width that it was given
    }
    assert runs["tnl"].model["decay_slopes"] == "paper" and runs["mamba2"].model["ssm_state"] == 16
    assert {run.model["norm"] for run in runs.values()} == {"rms"} and runs["llama"].training.lr == 1e-3
    least = {run.arch: run.model for run in load([{"s": {"n_layers": 2, "d_model": 48}}]).runs()}
    assert (least["llama"]["n_heads"], least["llama"]["d_ffn"]) == (2, 128)


def test_names_are_what_everything_else_reads(study, load):
    content = [{"a.1": SHAPE, "b-2": SHAPE | {"n_layers": 3}}, "14k"]
    for sizes in (content, [{"a.1": SHAPE}, {"b-2": SHAPE | {"n_layers": 3}}, "14k"]):
        assert list(load(sizes).grid.sizes) == ["a.1", "b-2", "14k"]
    assert list(load({"a.1": SHAPE, "b-2": SHAPE}).grid.sizes) == ["a.1", "b-2"]
    named = {
        "overrides": {"by_size": {"a.1": {"lr": 1e-3}}, "by_run": {"tnl/b-2": {"lr": 2e-3}}},
        "jobs": {"resources": {"a.1": {"nodes": 1}, "tnl/b-2": {"nodes": 1}, "eval": {"nodes": 1}}},
    }
    grid = {"archs": ["llama", "tnl"], "sizes": content, "extra_seeds": {"b-2": [3]}}
    path = study(grid=grid, **named)
    full = load_study(path)
    assert len(full.runs()) == 8 and {run.size for run in full.runs("size=a.1|14k")} == {"a.1", "14k"}
    for run in full.runs():
        assert RunSpec.model_validate(json.loads(run.model_dump_json())) == run  # as run.json holds it
    kept = load_study(path, ["grid.sizes=[b-2, 25k]"])  # names of the file's own, and of presets
    assert {run.size for run in kept.runs()} == {"b-2", "25k"} and kept.runs("size=b-2") == full.runs("size=b-2")
    assert [
        run.model["n_layers"] for run in load_study(path, ["grid.sizes={c: {n_layers: 5, d_model: 64}}"]).runs()
    ] == [5, 5]

    runner = CliRunner()
    for command, words, shown in (
        (app, ["plan", str(path), "--only", "size=b-2"], "tnl-b-2-c64-s0"),
        (
            app,
            [
                "submit",
                str(path),
                "--dry-run",
                "--set=jobs.cluster={nodes: 1, cpus_per_node: 8}",
                "--set=jobs.resources={}",
            ],
            "8 runs to train",
        ),
        (flops_app, ["study", str(path)], "tnl-b-2-c64-s0"),
    ):
        result = runner.invoke(command, words)
        assert result.exit_code == 0 and shown in result.output, result.output


LADDER = {"from": "1M", "to": "60M", "count": 3}
TRAINING = {"training": {"n_tokens": 10_000_000, "batch_tokens": 65_536}}


def test_a_ladder(load):
    """Rungs are named by their targets, which all architectures meet with what the file says of the model; a shape
    that the file gives, and --set, change what was matched."""
    study = load(LADDER)
    assert list(study.grid.sizes) == ["n1m", "n7.75m", "n60m"] == list(load([LADDER]).grid.sizes)
    assert list(load(["14k", {"from": 1e6, "to": "6e7", "count": 3}, {"mine": SHAPE}]).grid.sizes)[::4] == [
        "14k",
        "mine",
    ]
    targets = dict(zip(study.grid.sizes, (1e6, 60e6**0.5 * 1e3, 60e6), strict=True))
    for run in study.runs():
        limit = 0.03 if run.arch.startswith("mamba") and run.size != "n60m" else 0.01
        assert count_params(run.config).non_embedding == pytest.approx(targets[run.size], rel=limit)
        assert run.context_length == 64 and run.model["vocab_size"] == 257
        assert run.run_id == f"{run.arch}-{run.size}-c64-s0" and run.model.get("decay_slopes", "fixed") == "fixed"
    assert len({(run.model["n_layers"], run.model["d_model"]) for run in study.runs() if "mamba" not in run.arch}) == 3

    overrides = {
        "by_size": {"n1m": {"lr": 2e-3, "model": {"norm": "layer"}}},
        "by_arch": {"tnl": {"model": {"decay_slopes": "paper"}}, "hgrn1": {"model": {"hgrn1_state": "narrow"}}},
        "by_run": {"llama/n60m": {"model": {"n_layers": 3}}},
    }
    file, by_set = load(LADDER, overrides=overrides), load(LADDER, sets=["model.norm=layer"], overrides={})
    plain, runs = ({(run.arch, run.size): run for run in spec.runs()} for spec in (study, file))
    for key, run in runs.items():
        if key != ("llama", "n60m"):
            assert count_params(run.config).non_embedding == pytest.approx(targets[run.size], rel=0.03)
    assert runs["llama", "n1m"].model["norm"] == "layer" and runs["llama", "n1m"].training.lr == 2e-3
    assert runs["tnl", "n60m"].model["decay_slopes"] == "paper"
    assert runs["hgrn1", "n60m"].model["d_ffn"] > plain["hgrn1", "n60m"].model["d_ffn"] + 100
    shape = {key: plain["llama", "n60m"].model[key] for key in ("d_model", "d_ffn", "n_heads")}
    assert runs["llama", "n60m"].model.items() >= ({"n_layers": 3} | shape).items()
    for run in by_set.runs():
        assert run.model["d_ffn"] == plain[run.arch, run.size].model["d_ffn"] and run.run_id.endswith("-normlayer")


def test_a_ladder_of_equal_flops(load):
    model = {"context_length": 1024}
    runs = load(LADDER | {"match": "flops", "head_dim": 32}, model=model, **TRAINING).runs()
    for size in ("n1m", "n60m"):
        flops = {run.arch: train_flops_per_token(run.config, "exact") for run in runs if run.size == size}
        assert all(
            value == pytest.approx(flops["llama"], rel=0.03 if size == "n1m" else 0.01) for value in flops.values()
        )
    llama = next(run for run in runs if run.arch == "llama" and run.size == "n60m")
    assert count_params(llama.config).non_embedding == pytest.approx(60e6, rel=0.01)


@pytest.mark.parametrize("size", [{"from": "1M", "to": "2M", "count": 2}, "98k", {"mine": SHAPE}], ids=str)
def test_what_the_file_pins_an_axis_does_not_move(study, size):
    """An option that the file gives the value which follows from other fields keeps it where an axis or --set changes
    those fields, at every kind of size; one that the file leaves out follows them."""
    archs, axes = ["tnl", "cosformer2"], {"model.context_length": [64, 256]}
    heads = {run.size: run.config.head_dim for run in load_study(study(grid={"archs": archs, "sizes": [size]})).runs()}
    for name, head_dim in heads.items():
        grid = {"archs": archs, "sizes": [size], "axes": axes}
        pinned = {"context_length": 64, "gate_rank": head_dim, "tpe_context": 64}
        for model, followed in ((pinned, False), ({"context_length": 64}, True)):
            for run in load_study(study(grid=grid, model=model), ["model.n_heads=1"]).runs(f"size={name}"):
                assert run.config.head_dim == run.config.d_model > head_dim
                assert run.config.options.gate_rank == (run.config.head_dim if followed else head_dim)
                if run.arch == "cosformer2":
                    assert run.config.options.tpe_context == (run.context_length if followed else 64)


def test_rungs_are_sizes_like_others(study):
    overrides = {"by_size": {"n1m": {"lr": 1e-3}}}
    grid = {"archs": ["llama", "tnl"], "sizes": LADDER, "extra_seeds": {"n1m": [1, 2]}}
    path = study(grid=grid, overrides=overrides, **TRAINING)
    full = load_study(path)
    assert len(full.runs()) == 10 and len(full.runs("size=n1m,arch=tnl")) == 3
    kept = load_study(path, ["grid.sizes=[n1m, n60m]"])  # two of the file's rungs
    assert kept.runs("size=n60m") == full.runs("size=n60m") and len(kept.runs()) == 8
    fewer = load_study(path, ["grid.sizes={from: 1M, to: 2M, count: 2}"])
    assert list(fewer.grid.sizes) == ["n1m", "n2m"]
    result = CliRunner().invoke(app, ["plan", str(path), "--only", "size=n7.75m"])
    assert result.exit_code == 0 and "llama-n7.75m-c64-s0" in result.output, result.output


FORMS = "a ladder as {from: 1M, to: 60M, count: 6}"


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        (["410n"], ["grid.sizes: unknown size '410n' (did you mean '410m'?)", FORMS]),
        ([7], ["grid.sizes: 7 is no size", FORMS]),
        (["14k", "14k"], ["grid.sizes: names '14k' twice"]),
        ([{"98k": SHAPE}], ["'98k' is the name of a preset: give the shape another name"]),
        ([{"tnl": SHAPE}], ["'tnl' is the name of an architecture: give the shape another name"]),
        ([{"eval": SHAPE}], ["'eval' is the name of a kind of job"]),
        ([{"a": None}], ["a: a shape has keys and values"]),
        ([{"a": {"n_layer": 2}}], ["unknown key 'a.n_layer' (did you mean 'n_layers'?)"]),
        ([{"a": {"norm": "rms"}}], ["a.norm: a shape has n_layers,", "overrides.by_size.a.model"]),
        ([{"a": {"n_layers": 2}}], ["llama/a: grid.sizes.a has no d_model: add it"]),
        ([{"a": SHAPE | {"n_heads": 5}}], ["llama/a: model.d_model=64 is not divisible by model.n_heads=5"]),
        ([{"a": SHAPE | {"tnl": {"n_head": 2}}}], ["a.tnl.n_head is unknown (did you mean 'n_heads'?)"]),
        ([{"a": SHAPE | {"tnl": {"ssm_state": 2}}}], ["tnl/a: model.ssm_state means nothing to tnl, only to mamba"]),
        ([{"from": "1M", "to": "60M"}], ["key 'grid.sizes.count' is missing: add it"]),
        ({"from": "1M", "to": "60M", "cuont": 3}, ["unknown key 'cuont' of a ladder (did you mean 'count'?)"]),
        (LADDER | {"from": "1X"}, ["grid.sizes.from: parameters: '1X' ends in 'x'"]),
        (LADDER | {"from": "70M"}, ["grid.sizes: from: 70M is not below to: 60M"]),
        (LADDER | {"head_dim": 24}, ["grid.sizes: head_dim: 24 is no multiple of 16 up to 128"]),
        (LADDER | {"from": "2k"}, ["llama/n2k: no size within 3% of 2,000 parameters", "the nearest has 2,512"]),
    ],
)  # fmt: skip
def test_every_mistake_is_one_line(load, sizes, parts):
    with refused(*parts, "study.yaml"):
        load(sizes)


def test_what_names_a_size_that_the_study_has_not(load):
    for place, key in (
        ({"overrides": {"by_size": {"0.3m": {"lr": 1}}}}, r"overrides\.by_size\.0\.3m"),
        ({"overrides": {"by_run": {"tnl/0.3m": {"lr": 1}}}}, r"overrides\.by_run\.tnl/0\.3m"),
        ({"jobs": {"resources": {"0.3m": {"nodes": 1}}}}, r"jobs\.resources\.0\.3m"),
    ):
        with pytest.raises(InputError, match=rf"{key}: this study has no run of .*did you mean '(tnl/)?0\.2m'"):
            load([{"0.2m": SHAPE}], **place)
    with pytest.raises(InputError, match=r"grid\.sizes\.a\.mamba2: this study has no run of mamba2 \(valid: tnl\)"):
        load([{"a": SHAPE | {"mamba2": {"n_heads": 2}}}], ["tnl"])
    taken_out = load([{"a": SHAPE | {"mamba2": {"n_heads": 2}}}], sets=["grid.archs=[tnl]"])
    assert [run.arch for run in taken_out.runs()] == ["tnl"]


LADDER_STUDY = """
name: l
corpus: {source: [x], tokenizer: bytes, validation_tokens: 5000}
model: {context_length: 256}
grid: {archs: [llama], sizes: SIZES, axes: {AXES}}
training: {n_tokens: 100_000}
"""


def test_what_undoes_a_ladder_is_a_note(tmp_path):
    def notes(axes, ladder="{from: 1M, to: 4M, count: 2}"):
        (tmp_path / "l.yaml").write_text(LADDER_STUDY.replace("AXES", axes).replace("SIZES", ladder))
        return [run.notes for run in load_study(tmp_path / "l.yaml").runs()]

    assert all("off the ladder's" in lines[0] for lines in notes("model.n_layers: [4, 6]"))
    assert all(
        "off the ladder's" in lines[0]
        for lines in notes("model.n_layers: [4]", "{from: 1M, to: 4M, count: 2, match: flops}")
    )
    assert not any(notes("training.lr: [1e-3, 2e-3]"))
