"""`flops size`, `match` and `ladder`, and that a study file with a ladder has its models."""

import json

import pytest
import yaml
from typer.testing import CliRunner

from arch.config import ARCHS
from arch.presets import preset
from flops import count_params, train_flops_per_token
from scaling.cli.flops import app
from scaling.study.spec import load_study
from tests.registries import as_registered

STUDY = {
    "name": "printed",
    "corpus": {"source": "synthetic:0:100000", "tokenizer": "cl100k_base"},
    "training": {"n_tokens": 10_000_000, "batch_tokens": 65_536},
}


def flops(*words):
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.stdout if result.exit_code == 0 else result.stderr + str(result.exception)


def test_the_table_and_its_json():
    computed = json.loads(flops("ladder", "1M:60M:3", "--json", "--vocab", "257")[1])
    assert computed["target"]["head_dim"] == 32 and list(computed["target"]["n_params_non_embedding"]) == [
        "n1m",
        "n7.75m",
        "n60m",
    ]
    assert len(computed["rows"]) == 3 * len(ARCHS) and all(abs(row["deviation"]) < 0.03 for row in computed["rows"])
    code, text = flops("ladder", "1M:60M:3", "--arch", "hgrn2")
    assert code == 0 and "n7.75m  hgrn2" in text and "heads of 32 channels" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("ladder 1M:60M", "'1M:60M' is no ladder: write from, to and how many sizes, as 1M:60M:6"),
        ("ladder 60M:1M:3", "FROM:TO:COUNT: from: 60M is not below to: 1M"),
        ("ladder 1M:60M:2 --top 3", "No such option: --top"),
        ("ladder 1M:60M:2 --by loss", "--by: must be params or flops, not 'loss'"),
        ("ladder 1M:60M:2 --aspect 32:64", "--aspect: '32:64': a ladder takes one width over layers, as 64"),
        ("ladder 1M:60M:2 --head-dim 20", "--head-dim: 20 is no multiple of 16"),
        ("ladder 1k:1M:3", "llama/n1k: no size within 3% of 1,000 parameters on the ladder: the nearest has 2,512"),
        ("size --params 1M --by flops", "No such option: --by"),
        ("match llama-410m --top 2", "No such option: --top"),
    ],
)
def test_what_cannot_be_is_one_line(words, message):
    code, text = flops(*words.split())
    assert code != 0 and message in text


HYBRIDS = """
architectures:
  gdn-3to1: {layers: [gated_deltanet, gated_deltanet, gated_deltanet, softmax], softmax: {position: none}}
  mamba2-2to1: {layers: [mamba2, mamba2, hgrn2]}
"""


@pytest.fixture
def hybrids(tmp_path):
    """The beginning of a study file: what it does not say yet is not missed."""
    (tmp_path / "hybrids.yaml").write_text(HYBRIDS)
    with as_registered():
        yield str(tmp_path / "hybrids.yaml")


@pytest.mark.parametrize(
    ("archs", "words", "keys"),
    [
        (ARCHS, ["1M:1B:4"], "{from: 1M, to: 1B, count: 4}"),
        (
            ARCHS,
            ["3M:300M:3", "--by", "flops", "--head-dim", "64", "--aspect", "50", "--context", "1024"],
            "{from: 3M, to: 300M, count: 3, match: flops, head_dim: 64, aspect: 50}",
        ),
        (["hgrn2", "gdn-3to1", "mamba2-2to1"], ["1M:60M:3"], "{from: 1M, to: 60M, count: 3}"),
        (["gdn-3to1"], ["1M:60M:3", "--by", "flops"], "{from: 1M, to: 60M, count: 3, match: flops}"),
        (["llama", "gdn-3to1"], ["1M:60M:3", "--layers", "4"], "{from: 1M, to: 60M, count: 3, layers: 4}"),
    ],
)
def test_a_ladder_has_the_models_of_a_study_file_with_it(hybrids, archs, words, keys, tmp_path):
    rows = json.loads(flops("ladder", *words, "--arch", ",".join(archs), "--study", hybrids, "--json")[1])["rows"]
    grid = f"grid: {{archs: [{', '.join(archs)}], sizes: [{keys}]}}\n"
    model = f"model: {{context_length: {words[words.index('--context') + 1]}}}\n" if "--context" in words else ""
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(STUDY) + HYBRIDS + grid + model)
    runs = {(run.size, run.arch): run.config for run in load_study(tmp_path / "study.yaml").runs()}
    assert len(rows) == len(runs)
    for row in rows:
        cfg = runs[row["size"], row["arch"]]
        assert (cfg.n_layers, cfg.d_model) == (row["n_layers"], row["d_model"])
        assert count_params(cfg).non_embedding == row["n_params_non_embedding"]
        assert train_flops_per_token(cfg, "exact") == pytest.approx(row["flops_per_token_train_exact"])
        assert cfg.n_layers % (len(cfg.layers) or 1) == 0 and ("--layers" not in words or cfg.n_layers == 4)


def test_sizes_and_matches_of_hybrids_are_close(hybrids):
    for words in (
        ["size", "--params", "30M", "--top", "1", "--arch", "mamba2-2to1,gdn-3to1"],
        ["match", "gdn-3to1-160m"],
    ):
        rows = json.loads(flops(*words, "--study", hybrids, "--json")[1])["rows"]
        assert {"mamba2-2to1", "gdn-3to1"} <= {row["arch"] for row in rows}
        assert all(abs(row["deviation"]) < 0.05 for row in rows)


@pytest.mark.parametrize(
    ("study", "options", "expected"),
    [
        ("corpus: {tokenizer: bytes}\nmodel: {context_length: 2048}", [], (2048, 257)),
        ("corpus: {tokenizer: gpt2}\nmodel: {vocab_size: 60000}", ["--context", "512"], (512, 60000)),
        ("model: {context_length: 2048}", ["--set", "context_length=1024", "--vocab", "300"], (1024, 300)),
    ],
)
def test_a_studys_context_and_vocabulary_hold_unless_options_say_otherwise(study, options, expected, tmp_path):
    (tmp_path / "a b.yaml").write_text(study)
    words = ["--study", str(tmp_path / "a b.yaml"), "--arch", "llama"]
    counted = json.loads(flops("count", *words, "--size", "160m", *options, "--json")[1])
    assert (counted["model"]["context_length"], counted["model"]["vocab_size"]) == expected
    if "--set" not in options:
        row = json.loads(flops("size", *words, "--params", "30M", *options, "--json")[1])["rows"][0]
        assert row["n_params"] - row["n_params_non_embedding"] == expected[1] * row["d_model"]


def test_a_hybrid_is_counted_and_listed_as_any_other(hybrids):
    words = ["--study", hybrids, "--arch", "gdn-3to1", "--size", "160m"]
    counted = json.loads(flops("count", *words, "--json")[1])
    assert counted["n_params_non_embedding"] == count_params(preset("gdn-3to1", "160m")).non_embedding
    assert flops("memory", *words)[0] == 0
    listed = json.loads(flops("size", "--study", hybrids, "--params", "30M", "--json")[1])["rows"]
    assert [row["arch"] for row in listed] == [*ARCHS, "gdn-3to1", "mamba2-2to1"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("count --arch gdn-3to2 --size 160m", "unknown architecture 'gdn-3to2' (did you mean 'gdn-3to1'?)"),
        ("count --arch gdn-3to1 --size 410m", "n_layers=26: gdn-3to1 repeats 4 layers"),
        ("count --arch hgrn2 --size 410m --study nowhere", "nowhere: no such study file"),
        ("match gdn-3to1-161m", "unknown size '161m'"),
    ],
)
def test_what_is_wrong_with_a_hybrid_is_one_line(hybrids, words, message):
    where = [] if "--study" in words else ["--study", hybrids]
    code, text = flops(*words.split(), *where)
    assert code and message in text
