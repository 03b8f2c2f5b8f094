"""The studies that people copy: each can be planned, its runs keep their hashes, and each of its keys stands in its
file with a reason."""

import hashlib
import json
import random

import pandas as pd
import pyarrow
import pytest
import yaml
from typer.testing import CliRunner

from flops.params import count_params
from scaling.cli.main import app
from scaling.study.file import PACKAGED
from scaling.study.spec import load_study
from tests.data.image_folder import write_folder

STUDIES = sorted(path.stem for path in PACKAGED.glob("*.yaml"))
HASHES = {  # of (run id, spec hash) of every run of the grid
    "books": "0166de7f97197a31b32c492ea469d07c5afe90de4c36d204c702fe497b83f61e",
    "four-architectures": "8bdfd4dc87c7f09974e84ea75466059ea44a55add48b637dd29c81094c97aaa1",
    "paper": "6744ce300e6e391f47dd8b8308d7dd175d98dd3169dabcd58e21cea614b70b52",
    "paper-decay-tiny": "eec3130755b2894e61860a00b7cf2f091747cacb192286710a4fd403a1cdeb6b",
    "hgrn-ablations-tiny": "0ae8ed80c0b6102fb681e911e7bef941aa60e52fe050670b69cb307dd3251fd8",
}


@pytest.mark.parametrize("name", HASHES)
def test_hashes_stay_what_they_are(name, tmp_path):
    """A study must find its runs again after an update: a change here is a change for everyone who has trained."""
    lines = "\n".join(f"{run.run_id} {run.spec_hash}" for run in load_study(name, out=tmp_path).runs())
    assert hashlib.sha256(lines.encode()).hexdigest() == HASHES[name]


@pytest.mark.parametrize("name", STUDIES)
def test_a_packaged_study_plans(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["plan", name, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert f'"study": "{name}"' in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["own-text", "one-gpu", "cluster"])
def test_studies_to_copy_explain_their_lines(name):
    lines = (PACKAGED / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    plain = [line for line in lines if line.strip() and "#" not in line]
    sections = [line for line in plain if line.endswith(":") or line.startswith("  by_size")]
    assert len(plain) - len(sections) <= len(lines) // 5, f"{name}: say what these are for: {plain}"


def test_wikitext_103_runs_from_its_published_files(tmp_path, monkeypatch):
    """The packaged file with a tiny model, few tokens and a small vocabulary; its folder holds hand-made articles."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "wikitext-103-raw"
    folder.mkdir()
    words = ["the", "river", "runs", "south", "of", "a", "town", "built", "in", "1801", "by", "its", "mayor", "@-@"]
    draw = random.Random(0)
    for name, articles in (("train", 300), ("valid", 12), ("test", 12)):
        texts = (" = Town = \n \n " + " ".join(draw.choices(words, k=120)) + " . \n" for _ in range(articles))
        (folder / f"wiki.{name}.raw").write_text("".join(texts))
    content = yaml.safe_load((PACKAGED / "wikitext-103.yaml").read_text())
    content["corpus"] |= {"tokenizer": "bpe:300", "validation_tokens": 2000}
    content["grid"] |= {"archs": ["hgrn1-real"], "sizes": ["6k"]}
    content["training"] |= {"n_tokens": 8192, "batch_tokens": 2048, "warmup_tokens": 4096, "precision": "fp32"}
    content["training"] |= {"threads": 1, "n_checkpoints": 1, "checkpoint_dtype": "fp32"}
    del content["overrides"]  # of architectures that are left out here
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(content))
    result = CliRunner().invoke(app, ["run", "study.yaml"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    rows = pd.read_parquet("out/wikitext-103/results/evals.parquet")
    perplexity = rows[rows["metric"] == "perplexity"].set_index("task")["value"]
    assert {"perplexity-valid", "perplexity-test"} <= set(perplexity.index)
    assert perplexity["perplexity-test"] < 400 and perplexity["perplexity-test"] != perplexity["perplexity-valid"]


def test_imagenet_has_the_parameters_of_the_papers():
    """HGRN's table 7 and HGRN2's table 8, to 0.1 million; ours have no biases, up to 0.1 million of the small ones."""
    runs = {f"{run.arch}/{run.size}": run.config for run in load_study("imagenet").runs()}
    counts = {name: count_params(config).total / 1e6 for name, config in runs.items()}
    for name, published in (("hgrn1/tiny", 6.1), ("hgrn1/small", 23.7), ("hgrn2/tiny", 6.1), ("hgrn2/small", 23.8)):
        assert -0.05 < published - counts[name] < (0.05 if "tiny" in name else 0.2), (name, counts[name])
    for name, published in (("vanilla/tiny", 5.7), ("vanilla/small", 22.0)):  # with DeiT's patches and positions
        encoder = {**runs[name].to_dict()["encoder"], "patch": 16, "positions": "learned"}
        assert round(count_params(runs[name].replace(encoder=encoder)).total / 1e6, 1) == published


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("hgrn2", {"hgrn2/d768": 0.15, "hgrn2/d1024": 0.385, "hgrn2/d2048": 1.0, "hgrn2/d2560": 2.9}),
        ("hgrn2-pile", {"hgrn2/d2048": 1.0, "llama/d2048": 1.0}),
        ("hgrn2-expand-ratio", {"hgrn2/d1024": 0.385}),
        ("hgrn2-expansions", {"lr4/d1024": 0.385, "krp4/d1024": 0.386, "llama/d1024": 0.386, "vanilla/d1024": 0.380}),
        ("hgrn-zero-shot", {"hgrn1/d768": 0.15, "hgrn1/d1024": 0.35, "hgrn1/d2048": 1.0}),
    ],
)
def test_models_of_the_pile_have_the_parameters_of_the_papers(name, published):
    """HGRN's tables 3 to 5 and HGRN2's tables 3 and 6, in billions."""
    runs = {f"{run.arch}/{run.size}": run.config for run in load_study(name).runs()}
    for model, billions in published.items():
        assert count_params(runs[model]).total / 1e9 == pytest.approx(billions, rel=0.09 if billions >= 1 else 0.04)


@pytest.mark.parametrize(
    "name", ["hgrn-pile", "hgrn-zero-shot", "hgrn2-pile", "hgrn2-expansions", "hgrn2-expand-ratio"]
)
def test_recipes_of_the_pile_train_from_its_published_files(name, tmp_path, monkeypatch):
    """Each packaged file with its first architecture, tiny, for four steps; its folder holds hand-made documents."""
    monkeypatch.chdir(tmp_path)
    content = yaml.safe_load((PACKAGED / f"{name}.yaml").read_text())
    folder = tmp_path / content["corpus"]["source"]
    folder.mkdir(parents=True)
    for file in range(2):
        documents = (
            json.dumps({"text": f"Part {i} of {file}. " * 40, "meta": {"pile_set_name": "x"}}) for i in range(99)
        )
        with pyarrow.CompressedOutputStream(folder / f"{file:02}.jsonl.zst", "zstd") as stored:
            stored.write("\n".join(documents).encode())
    content["corpus"] |= {"tokenizer": "bytes", "validation_fraction": 0.1}
    content["grid"] |= {"archs": content["grid"]["archs"][:1], "sizes": ["6k"]}
    content["grid"].pop("axes", None)
    content["model"] = {"context_length": 128}
    content["training"] |= {"n_tokens": 1024, "batch_tokens": 256, "micro_batch_tokens": 256, "warmup_tokens": 256}
    content["training"] |= {"threads": 1, "n_checkpoints": 1, "checkpoint_dtype": "fp32", "precision": "fp32"}
    for section in ("overrides", "jobs", "evaluation"):
        content.pop(section, None)
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(content))
    result = CliRunner().invoke(app, ["train", "study.yaml"], catch_exceptions=False)
    assert result.exit_code == 0 and "done, step 4/4" in result.output, result.output


def test_imagenet_runs_from_a_folder_of_images(tmp_path, monkeypatch):
    """The packaged file with a tiny model, two classes of crops and 30 steps."""
    pytest.importorskip("PIL")
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "images")
    content = yaml.safe_load((PACKAGED / "imagenet.yaml").read_text())
    content["corpus"] |= {"source": "images:images:2:28", "augment": None}  # timm may not be there
    shape = {"n_layers": 2, "d_model": 32, "n_heads": 2, "d_ffn": 64}
    content["grid"] |= {"archs": ["hgrn2"], "sizes": {"d": shape}}
    row = 28 * 28 * 3
    content["training"] |= {"n_tokens": 480 * row, "batch_tokens": 16 * row, "warmup_tokens": 0, "lr": 3e-3}
    content["training"] |= {
        "state_every_tokens": 320 * row,
        "precision": "fp32",
        "checkpoint_dtype": "fp32",
        "threads": 1,
    }
    del content["overrides"]
    content["evaluation"]["validation_tokens"] = 2 * row
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(content))
    result = CliRunner().invoke(app, ["run", "study.yaml"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    rows = pd.read_parquet("out/imagenet/results/evals.parquet")
    accuracy = rows[(rows["task"] == "classify") & (rows["metric"] == "acc")]["value"]
    assert len(accuracy) == 1 and accuracy.min() >= 0.8, result.output
