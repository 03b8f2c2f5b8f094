"""Studies whose runs are finished without training: corpus, directories and manifests are real, their numbers not."""

from __future__ import annotations

import io
import json
import lzma
import math
import re
import struct
import tarfile
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from data.files import new_directory
from flops import cost_table
from scaling.cli.corpus import data_stage
from scaling.cli.evaluation import EvalOptions, eval_matrix, show_results
from scaling.cli.main import app
from scaling.cli.request import Request
from scaling.cli.training import prepare_runs
from scaling.rundir.directory import RunDir
from scaling.study.run import RunSpec
from scaling.study.spec import load_study

STUDY = """
name: tiny
corpus: {source: SOURCE, validation_fraction: 0.2}
grid: {archs: [llama], sizes: [6k, 14k]}
model: {context_length: 64}
training: {n_tokens: 7680, batch_tokens: 256, warmup_tokens: 512, lr: 3e-3, n_checkpoints: 3}
evaluation: {validation_tokens: 256}
fit: {smoothing_tokens: 512, grid_points: 10, control: bigram}
"""
RUNS = ["llama-6k-c64-s0", "llama-14k-c64-s0"]


def write_text(folder: Path) -> Path:
    """A text of some documents."""
    text = folder / "text.jsonl"
    lines = [json.dumps({"text": f"document {i}: " + " ".join(str(i * j % 97) for j in range(120))}) for i in range(60)]
    text.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return text


def write_study(folder: Path, text: Path, **changes: str) -> Path:
    """The study's file; `changes`: a flow value of it, by key, and what it is instead."""
    content = STUDY.replace("SOURCE", f"'{text}'")
    for key, value in changes.items():
        content, n_changed = re.subn(rf"\b{key}: (\[[^]]*\]|[^,}}]+)", f"{key}: {value}", content)
        assert n_changed == 1
    path = folder / "tiny.yaml"
    path.write_text(content, encoding="utf-8")
    return path


def request_of(path: Path, out: Path, only: str | None = None, sets: tuple[str, ...] = ()) -> Request:
    return Request(load_study(path, list(sets), out, only), only, io.StringIO())


def loss_of(run: RunSpec, step: int) -> float:
    """By a law with both terms, which fits end at soon."""
    return 2 + 20 * cost_table(run.config)["n_params_non_embedding"] ** -0.3 + 2 / math.sqrt(step)


def finish(request: Request, run: RunSpec, state: str = "done", evaluated: bool = True) -> RunDir:
    """What a finished run leaves, prepared before."""
    rundir = request.rundir(run)
    for step in run.checkpoint_steps:
        manifest = {"step": step, "n_tokens": step * run.training.batch_tokens}
        manifest |= {"run_id": run.run_id, "spec_hash": run.spec_hash}
        with new_directory(rundir.checkpoint(step), manifest) as folder:
            (folder / "model.safetensors").write_bytes(f"weights of {run.run_id} {step}".encode() * 100)
            (folder / "config.json").write_text(json.dumps(run.model), encoding="utf-8")
            (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
        with new_directory(rundir.state(step), manifest | {"parameters": {}}) as folder:
            (folder / "00000-of-00001.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    rows = [
        {"step": step, "n_tokens": step * 256, "loss": loss_of(run, step), "grad_norm": 1.0, "lr": 3e-3}
        for step in range(1, run.n_steps + 1)
    ]
    rundir.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    rundir.write_status(state, run.n_steps, run.n_tokens, None, None)
    for pair in eval_matrix(request, EvalOptions()).pairs if evaluated else ():
        if pair.checkpoint.run.run_id == run.run_id:
            loss = loss_of(run, int(pair.checkpoint.path.name))
            values = {"loss": loss, "perplexity": math.exp(loss), "bits_per_byte": loss / math.log(2)}
            pair.store(values | {"n_tokens_scored": 256, "context_length": 64}, device="cpu", seconds=1.0)
    return rundir


def finished_study(path: Path, out: Path, only: str | None = None, sets: tuple[str, ...] = ()) -> Request:
    """The study with corpus and all chosen runs finished."""
    request = request_of(path, out, only, sets)
    prepare_runs(request, data_stage(request))
    for run in request.runs:
        finish(request, run)
    show_results(request)
    return request


def scaling(*words: Any) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def line_of(result: Result) -> str:
    """The message of a command that refused."""
    assert result.exit_code == 1 and result.exception is not None, result.output
    return str(result.exception)


def files_of(folder: Path) -> dict[str, bytes]:
    """What lies below a folder, but for locks, which every writer leaves."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


Member = tuple[tarfile.TarInfo, bytes]


def read_tar(path: Path) -> list[Member]:
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress(path.read_bytes()))) as tar:
        return [(member, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]


def write_tar(path: Path, members: list[Member]) -> Path:
    with lzma.open(path, "wb", preset=0) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for member, content in members:
            tar.addfile(member, io.BytesIO(content))
    return path
