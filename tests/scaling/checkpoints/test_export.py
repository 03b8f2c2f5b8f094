"""An exported folder works where this project is not installed: same logits, same ids, generate, lm_eval."""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from arch.architectures.tnl.mixer import TNLMixer
from arch.config import ARCHS, field_choices
from arch.errors import InputError
from arch.hf.auto import LinearScalingForCausalLM
from arch.hf.remote_code import AUTO_MAP, remote_code
from arch.model.lm import build_model, load_model
from arch.presets import preset
from arch.registry import ARCHITECTURES, register, register_pattern
from data.files import parse_json, read_json, read_manifest, write_json
from data.tokenizer import get_tokenizer
from scaling.checkpoints.export import export_hf
from scaling.rundir.checkpoint_writer import probe_rows, write_checkpoint
from tests.commands import refused
from tests.registries import as_registered

CHOICES = field_choices()

CONTEXT = 64
TEXT = "Hello, <|endoftext|> wörld\n"
IDENTITY = {"spec_hash": "abc", "step": 3, "n_tokens": 96_000}
VALIDATION = np.random.default_rng(0).integers(0, 257, 1000).astype(np.uint16)

# Run in the second environment: argv = folders; writes what it finds as one file.
LOADS = """
import sys, torch, transformers
for name in ("arch", "scaling", "data"):
    try:
        __import__(name)
    except ImportError:
        continue
    raise SystemExit(f"{name} can be imported: this is not a second environment")
found = {}
for folder in sys.argv[1:]:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    stored = {str(p.dtype) for p in model.parameters()}
    model = model.float()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    inputs = tokenizer(TEXT, return_tensors="pt")
    end = model.generation_config.eos_token_id
    model.generation_config.eos_token_id = None
    found[folder] = {
        "module": type(model).__module__,
        "dtypes": sorted(stored),
        "ids": inputs.input_ids,
        "logits": model(**inputs).logits.detach(),
        "generated": model.generate(**inputs, max_new_tokens=12, do_sample=False),
        "end": end,
        "text": tokenizer.decode(inputs.input_ids[0]),
        "n_positions": model.config.max_position_embeddings,
    }
torch.save(found, "found.pt")
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs Python in an environment with the same packages but this project, which an editable install hides from a
    path that a .pth file adds."""
    folder = tmp_path_factory.mktemp("elsewhere")
    venv.create(folder / "venv", symlinks=True)
    python = folder / "venv" / "bin" / "python"
    show = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run([python, "-c", show], capture_output=True, text=True, check=True).stdout.strip()
    (Path(packages) / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hf")}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [str(python), *arguments],
            cwd=folder,
            env=kept | offline | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    run.folder = folder  # type: ignore[attr-defined]
    return run


def made_checkpoint(path: Path, arch: str, dtype: str = "bf16", **changes: Any) -> Path:
    model = build_model(preset(arch, "14k", context_length=CONTEXT, chunk_size=16, init_std=0.2, **changes), seed=0)
    manifest = {"run_id": f"{arch}-14k-c64-s0"} | IDENTITY
    write_checkpoint(
        path, model, dtype, probe_rows(VALIDATION, CONTEXT), torch.device("cpu"), manifest, get_tokenizer("bytes")
    )
    return path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_checkpoint(tmp_path_factory.mktemp("run") / "00000003", "hgrn2")


def greedy(model: Any, ids: torch.Tensor, n: int) -> torch.Tensor:
    for _ in range(n):
        ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], 1)
    return ids


FORMS = {f"hgrn1_{form}": ("hgrn1", {"hgrn1_state": form}) for form in CHOICES["hgrn1_state"][1:]}
FORMS["tnl_paper"] = ("tnl", {"decay_slopes": "paper"})
FEW = ("tnl", "hgrn2", "mamba2", "mix")
HYBRID = (["gated_deltanet", "softmax"], {"softmax": {"position": "none", "window": 9}})


@pytest.mark.parametrize(
    "models",
    [
        pytest.param({arch: (arch, {"tie_embeddings": arch != "tnl"}) for arch in FEW}, id="few"),
        # fast: the code that travels, by tests/arch/hf/test_remote_code.py
        pytest.param({arch: (arch, {}) for arch in ARCHS if arch not in FEW}, id="all", marks=pytest.mark.slow),
        pytest.param(FORMS, id="other forms", marks=pytest.mark.slow),
    ],
)
def test_architectures_load_without_this_project(
    models: dict[str, tuple[str, dict[str, Any]]], tmp_path: Path, elsewhere: Any
) -> None:
    with as_registered():
        register_pattern("mix", *HYBRID)
        for name, (arch, changes) in models.items():
            export_hf(made_checkpoint(tmp_path / f"{name}-checkpoint", arch, **changes), tmp_path / name)
    elsewhere("-c", f"TEXT = {TEXT!r}\n{LOADS}", *(str(tmp_path / name) for name in models))
    logits = torch.load(elsewhere.folder / "found.pt", weights_only=True)
    tokenizer = get_tokenizer("bytes")
    for name in models:
        there, here = logits[str(tmp_path / name)], load_model(tmp_path / f"{name}-checkpoint")
        assert there["module"].startswith(f"transformers_modules.{name}."), "another folder's code ran"
        assert "torch.bfloat16" in there["dtypes"], name
        assert there["ids"].tolist() == [tokenizer.encode(TEXT)] and there["text"] == TEXT
        with torch.no_grad():
            torch.testing.assert_close(there["logits"], here(there["ids"]).logits, rtol=1e-5, atol=1e-5)
            assert torch.equal(there["generated"], greedy(here, there["ids"], 12)), name
        assert (there["end"], there["n_positions"]) == (tokenizer.eot_id, CONTEXT)


@pytest.mark.slow
def test_lm_eval_runs_on_it(tmp_path: Path, elsewhere: Any) -> None:
    """All three kinds of requests, offline; perplexity and accuracy are those of our own model."""
    export_hf(made_checkpoint(tmp_path / "checkpoint", "hgrn2"), tmp_path / "model", "fp32")
    rows = [{"question": f"{i} plus one is ", "choices": [str(i + 1), str(i + 2)]} for i in range(6)]
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    (tasks / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    common = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {tasks}/rows.jsonl}}}}\ntest_split: test\n"
    (tasks / "choice.yaml").write_text(
        f'task: own_choice\n{common}output_type: multiple_choice\ndoc_to_text: "{{{{question.strip()}}}}"\n'
        f"doc_to_target: 0\ndoc_to_choice: choices\nmetric_list: [{{metric: acc}}]\n"
    )
    (tasks / "text.yaml").write_text(
        f'task: own_text\n{common}output_type: loglikelihood_rolling\ndoc_to_text: ""\n'
        f'doc_to_target: "{{{{question}}}}"\nmetric_list: [{{metric: byte_perplexity}}]\n'
    )
    (tasks / "answer.yaml").write_text(
        f'task: own_answer\n{common}output_type: generate_until\ndoc_to_text: "{{{{question}}}}"\n'
        f'doc_to_target: "{{{{choices[0]}}}}"\ngeneration_kwargs: {{until: ["~"], max_gen_toks: 8, do_sample: false}}\n'
        f"metric_list: [{{metric: exact_match}}]\n"
    )
    model = f"pretrained={tmp_path}/model,trust_remote_code=True,max_length={CONTEXT}"
    options = ["--include_path", str(tasks), "--device", "cpu", "--batch_size", "4", "--output_path", str(tmp_path)]
    options += ["--tasks", "own_choice,own_text,own_answer", "--log_samples"]
    elsewhere("-m", "lm_eval", "--model", "hf", "--model_args", model, *options)
    (results,) = tmp_path.rglob("results_*.json")
    scores = parse_json(results.read_bytes())["results"]

    ours, tokenizer = load_model(tmp_path / "checkpoint"), get_tokenizer("bytes")

    def log_likelihood(context: str, text: str) -> float:
        ids = [*(tokenizer.encode(context) if context else [tokenizer.eot_id]), *tokenizer.encode(text)]
        with torch.no_grad():
            logs = ours(torch.tensor([ids[:-1]], dtype=torch.int64)).logits[0].log_softmax(-1)
        n = len(tokenizer.encode(text))
        return float(logs[-n:].gather(1, torch.tensor(ids[-n:], dtype=torch.int64)[:, None]).sum())

    texts = [row["question"] for row in rows]
    nats = -sum(log_likelihood("", text) for text in texts) / sum(len(text.encode()) for text in texts)
    assert scores["own_text"]["byte_perplexity,none"] == pytest.approx(math.exp(nats), rel=1e-4)
    right = [
        log_likelihood(row["question"].strip(), f" {row['choices'][0]}")
        > log_likelihood(row["question"].strip(), f" {row['choices'][1]}")
        for row in rows
    ]
    assert scores["own_choice"]["acc,none"] == pytest.approx(sum(right) / len(right))
    (samples,) = tmp_path.rglob("samples_own_answer_*.jsonl")
    for line in samples.read_text().splitlines():
        sample = json.loads(line)
        prompt = torch.tensor([list(tokenizer.encode(sample["doc"]["question"]))], dtype=torch.int64)
        expected = greedy(ours, prompt, 8)[0, prompt.shape[1] :].tolist()
        expected = expected[: expected.index(tokenizer.eot_id)] if tokenizer.eot_id in expected else expected
        answer = bytes(expected).decode(errors="replace").split("~")[0]
        assert sample["resps"][0][0] == answer


def test_a_push_is_a_revision_by_step(tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's own client, where no hub is; then what it is asked for."""
    import huggingface_hub
    from typer.testing import CliRunner

    from scaling.checkpoints.export import push
    from scaling.cli.main import app

    words = ["export", str(checkpoint), str(tmp_path / "my model"), "--push", "me/models"]
    shown = CliRunner().invoke(app, [*words, "--dry-run"])
    assert shown.exit_code == 0 and "would be revision step3 of me/models" in shown.stdout, shown.output
    assert "nothing was written" in shown.stdout and not (tmp_path / "my model").exists()
    shown = CliRunner().invoke(app, [*words[:-1], "no/such/name"])
    assert isinstance(shown.exception, InputError) and "is no OWNER/NAME" in str(shown.exception)
    export_hf(checkpoint, tmp_path / "my model")
    monkeypatch.setattr(
        huggingface_hub, "HfApi", lambda: huggingface_hub.hf_api.HfApi("http://127.0.0.1:9", token="se")
    )
    with pytest.raises(InputError, match=r"--push me/models: not uploaded .*hf upload me/models .* --revision step3"):
        push(tmp_path / "my model", "me/models", 3)

    asked: list[Any] = []

    class Hub:
        def __getattr__(self, name: str) -> Any:
            return lambda *words, **more: asked.append((name, *words, more)) or self

        commit_url = "https://hub/commit"

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    assert push(tmp_path / "my model", "me/models", 3) == "https://hub/commit"
    assert [name for name, *_ in asked] == ["create_repo", "create_branch", "upload_folder"]
    assert asked[0][-1]["private"] and asked[1][-1]["branch"] == asked[2][-1]["revision"] == "step3"


@pytest.mark.parametrize("dtype, wanted", [(None, "bf16"), ("bf16", "bf16"), ("fp32", "fp32")])
def test_weights_are_the_checkpoints(tmp_path: Path, checkpoint: Path, dtype: str | None, wanted: str) -> None:
    result = export_hf(checkpoint, tmp_path / "new" / "out", dtype)
    stored, exported = (load_file(path / "model.safetensors") for path in (checkpoint, tmp_path / "new" / "out"))
    assert stored.keys() == exported.keys()
    for name, tensor in stored.items():
        assert exported[name].dtype == (torch.float32 if wanted == "fp32" else tensor.dtype), name
        assert torch.equal(exported[name].float(), tensor.float()), name
    config = parse_json((tmp_path / "new" / "out" / "config.json").read_bytes())
    assert config["dtype"] == {"bf16": "bfloat16", "fp32": "float32"}[wanted]
    assert result["n_params"] == sum(p.numel() for p in load_model(checkpoint).parameters())


def test_fp32_weights_are_rounded_on_request_but_time_scales(tmp_path: Path) -> None:
    path = made_checkpoint(tmp_path / "checkpoint", "mamba2", "fp32")
    export_hf(path, tmp_path / "out", "bf16")
    stored, exported = (load_file(p / "model.safetensors") for p in (path, tmp_path / "out"))
    keep = load_model(path).keep_fp32()
    assert keep and keep < stored.keys()
    for name, tensor in stored.items():
        assert torch.equal(exported[name], tensor if name in keep else tensor.bfloat16()), name
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None and manifest["probe_loss"] is None and manifest["dtype"] == "bf16"


def test_what_lies_in_the_folder(tmp_path: Path, checkpoint: Path) -> None:
    result = export_hf(checkpoint, tmp_path / "out")
    files = {path.name: path for path in (tmp_path / "out").iterdir()}
    data = {"model.safetensors", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert files.keys() == data | {"README.md", "manifest.json"} | remote_code().keys()
    assert result["directory"] == str(tmp_path / "out") and result["files"] == sorted(files)
    assert result["bytes"] == sum(path.stat().st_size for path in files.values())
    assert {path.stat().st_mode & 0o777 for path in files.values()} == {0o644}
    assert parse_json(files["config.json"].read_bytes())["auto_map"] == AUTO_MAP
    assert parse_json(files["generation_config.json"].read_bytes())["eos_token_id"] == 256
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert files[name].read_bytes() == (checkpoint / name).read_bytes()
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None and manifest["run_id"] == "hgrn2-14k-c64-s0"
    card = files["README.md"].read_text()
    for fact in ("hgrn2", "20,040 (13,872", "64 tokens", "3, 96,000 tokens", f"{manifest['probe_loss']:.4f} nats/byte"):
        assert fact in card, fact
    assert "from_pretrained(folder, trust_remote_code=True)" in card
    with as_registered():
        register_pattern("mix", *HYBRID)
        export_hf(made_checkpoint(tmp_path / "mix", "mix"), tmp_path / "hybrid")
    assert "| mix: gated_deltanet, transformer, repeated |" in (tmp_path / "hybrid" / "README.md").read_text()


def test_a_folders_name_is_in_no_code_and_files_are_as_the_umask_says(tmp_path: Path, checkpoint: Path) -> None:
    name = """a", trust_remote_code=True); import os; os.mkdir("here"); print("\n```\n# b"""
    before = os.umask(0o077)
    try:
        export_hf(checkpoint, tmp_path / name)
    finally:
        os.umask(before)
    card = (tmp_path / name / "README.md").read_text()
    assert "os.mkdir" not in card
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / name).iterdir()} == {0o600}


@pytest.mark.parametrize(
    "change", [{"run_id": "../../there"}, {"run_id": "a\n# b"}, {"step": "3"}, {"n_tokens": []}, {"tokenizer": "bytes"}]
)
def test_a_manifest_of_another_form_is_no_checkpoint(tmp_path: Path, checkpoint: Path, change: dict[str, Any]) -> None:
    shutil.copytree(checkpoint, copy := tmp_path / "copy")
    write_json(copy / "manifest.json", read_json(copy / "manifest.json") | change)
    with pytest.raises(InputError, match=f"is no checkpoint .manifest.json: {next(iter(change))} is "):
        export_hf(copy, tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_layers": 10**9}, "layers, and config.json asks for n_layers="),
        ({"vocab_size": 10**9}, "has shape [257, 24], the configuration needs [1000000000, 24]"),
        ({"d_ffn": 10**9}, "the configuration needs "),
        ({"d_model": 10**9, "n_heads": 10**9}, "the configuration needs "),
    ],
)
def test_a_configuration_that_asks_for_more_than_the_weights_makes_no_model(
    tmp_path: Path, checkpoint: Path, change: dict[str, Any], message: str
) -> None:
    shutil.copytree(checkpoint, copy := tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | change))
    begun = time.perf_counter()
    for load in (load_model, LinearScalingForCausalLM.from_pretrained if "n_layers" in change else load_model):
        with refused(message):
            load(copy)
    assert time.perf_counter() - begun < 10


def test_bad_inputs(tmp_path: Path, checkpoint: Path) -> None:
    def refused(message: str, source: Path = checkpoint, target: str = "out", dtype: str | None = None) -> None:
        with pytest.raises(InputError, match=message) as caught:
            export_hf(source, tmp_path / target, dtype)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".*.tmp"))

    refused("nothing: does not exist", tmp_path / "nothing")
    refused("dtype 'fp8' is none of bf16, fp32", dtype="fp8")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("keep me")
    refused("full exists and is not empty", target="full")
    assert (tmp_path / "full" / "mine.txt").read_text() == "keep me"
    refused(r"mine\.txt exists", target="full/mine.txt")
    refused("cannot be written, and nothing is left of it: Not a directory", target="full/mine.txt/out")
    damaged = tmp_path / "damaged"
    shutil.copytree(checkpoint, damaged)
    weights = bytearray((damaged / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (damaged / "model.safetensors").write_bytes(weights)
    refused("damaged: is damaged", damaged)
    bare = rewritten(checkpoint, tmp_path / "bare", lambda m: m["files"].pop("tokenizer.json"))
    refused(r"bare: has no tokenizer\.json", bare)
    other = rewritten(checkpoint, tmp_path / "other", lambda m: m["files"].pop("model.safetensors"))
    refused("other: is no checkpoint", other)


def rewritten(checkpoint: Path, path: Path, change: Any) -> Path:
    """The checkpoint again, its manifest changed."""
    shutil.copytree(checkpoint, path)
    manifest = read_json(path / "manifest.json")
    change(manifest)
    write_json((path / "manifest.json"), manifest)
    return path


def test_an_empty_directory_may_be_there(tmp_path: Path, checkpoint: Path) -> None:
    (tmp_path / "out").mkdir()
    export_hf(checkpoint, tmp_path / "out")
    with pytest.raises(InputError, match="exists and is not empty"):
        export_hf(checkpoint, tmp_path / "out")


def test_a_full_disk_leaves_nothing(tmp_path: Path, checkpoint: Path) -> None:
    """A limit on the size of files stands for the disk: 20 kB holds every file but the weights."""
    script = (
        "import resource, signal, sys, pathlib, safetensors.torch\n"
        "import arch.model.lm, arch.hf.remote_code, scaling.rundir.checkpoint_writer\n"
        "from scaling.checkpoints.export import export_hf; from arch.errors import InputError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "try:\n    export_hf(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))\n"
        "except InputError as error:\n    print(error)\n"
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    (tmp_path / "in").mkdir()
    command = [sys.executable, "-c", script, str(checkpoint), str(tmp_path / "in" / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "cannot be written, and nothing is left of it" in done.stdout and "too large" in done.stdout
    assert not list((tmp_path / "in").iterdir())


class OutsideMixer(TNLMixer):
    pass


def test_code_from_outside_cannot_travel(tmp_path: Path) -> None:
    register("outside", mixer=lambda: OutsideMixer, options=ARCHITECTURES["tnl"].options)
    try:
        path = made_checkpoint(tmp_path / "checkpoint", "outside")
        with pytest.raises(
            InputError, match=r"'outside' is made of tests\.scaling\.checkpoints\.test_export, which is not in arch"
        ):
            export_hf(path, tmp_path / "out")
    finally:
        del ARCHITECTURES["outside"]
    assert not (tmp_path / "out").exists()
