"""Seeded damage to what a finished study leaves and to tables of runs, and the commands that read them."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from data.files import SEAL, json_bytes

from .mutations import ZOO, changed_value, paths_of

STUDY = """
name: tiny
out: out
corpus: {source: "synthetic:0:60000", validation_fraction: 0.2}
grid: {archs: [llama, tnl], sizes: [6k, 14k]}
model: {context_length: 64}
training: {n_tokens: 7680, batch_tokens: 256, warmup_tokens: 512, lr: 3e-3, n_checkpoints: 3}
evaluation: {validation_tokens: 256}
fit: {smoothing_tokens: 512, grid_points: 10, control: bigram}
"""
RUN = "out/tiny/runs/llama-6k-c64-s0"
COMMANDS: list[tuple[str, list[str], str]] = [  # app, words, what the files that they read begin with
    ("scaling", ["status", "tiny.yaml", "--json"], "out/tiny/runs"),
    ("scaling", ["plan", "tiny.yaml"], "out/tiny"),
    ("scaling", ["run", "tiny.yaml", "--dry-run"], "out/tiny"),
    ("scaling", ["submit", "tiny.yaml", "--dry-run", "--set=jobs.cluster={nodes: 1, cpus_per_node: 8}"], "out/tiny"),
    ("scaling", ["eval", "table", "tiny.yaml"], "out/tiny/runs"),
    ("scaling", ["eval", "study", "tiny.yaml", "--dry-run"], "out/tiny"),
    ("scaling", ["generate", RUN, "x", "--tokens", "1"], RUN),
    ("scaling", ["bundle", "pack", "tiny.yaml", "--dry-run"], "out/tiny"),
    ("scaling", ["bundle", "unpack", "tiny.tar.xz", "--out", "there", "--dry-run"], "tiny.tar.xz"),
    ("scaling", ["publish", "--check", "published"], "published"),
    ("scaling", ["fit", "table", "runs.csv", "--approach", "parametric"], "runs.csv"),
    ("scaling", ["fit", "table", "runs.csv.gz", "--approach", "isoflop"], "runs.csv.gz"),
    ("scaling", ["fit", "table", "runs.jsonl", "--approach", "envelope"], "runs.jsonl"),
    ("scaling", ["fit", "table", "runs.parquet", "--approach", "parametric"], "runs.parquet"),
    ("flops", ["budget", "--compute", "1e15", "--law", "out/tiny/results/fits.json"], "out/tiny/results/fits.json"),
]
LAUNCHERS = {
    **dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_MEM_PER_CPU"), "3"),
    **{"MASTER_ADDR": "nowhere.invalid", "MASTER_PORT": "x", "SLURM_JOB_ID": "7", "LC_ALL": "C", "LANG": "C"},
    **{"OMP_NUM_THREADS": "abc", "SLURM_CPU_BIND": "none", "SBATCH_EXPORT": "NONE", "COLUMNS": "-1"},
}


@cache
def finished() -> dict[str, bytes]:
    """By name every file of a small study that is finished, its bundle, its published folder and a table of runs in
    four forms. Its weights are none, and its losses are made up."""
    from ..bundle.small import finished_study, scaling

    with TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        folder = Path(place)
        patch.chdir(folder)
        (folder / "tiny.yaml").write_text(STUDY, encoding="utf-8")
        finished_study(Path("tiny.yaml"), Path("out"))
        for words in (
            ["fit", "study", "tiny.yaml"],
            ["bundle", "pack", "tiny.yaml", "--to", "tiny.tar.xz"],
            ["publish", "tiny.yaml", "published"],
        ):
            done = scaling(*words)
            assert done.exit_code == 0, (done.output, done.exception)
        write_tables(folder)
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write_tables(folder: Path) -> None:
    import pandas as pd

    rows = [
        {"arch": "a", "N": n, "D": d, "C": 6.0 * n * d, "loss": 1.7 + 400 / n**0.34 + 410 / d**0.28}
        for n in (10**6, 3 * 10**6, 10**7, 3 * 10**7)
        for d in (10**8, 3 * 10**8, 10**9, 3 * 10**9)
    ]
    frame = pd.DataFrame(rows)
    frame.to_csv(folder / "runs.csv", index=False)
    (folder / "runs.csv.gz").write_bytes(gzip.compress((folder / "runs.csv").read_bytes(), mtime=0))
    (folder / "runs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    frame.to_parquet(folder / "runs.parquet", index=False)


def flipped(draw: random.Random, content: bytes) -> bytes:
    """With one to three bits changed."""
    changed = bytearray(content or b"x")
    for _ in range(draw.choice((1, 1, 3))):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def cut(draw: random.Random, content: bytes) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def of_another_type(draw: random.Random, content: bytes) -> bytes:
    """JSON with one to three values of another type, with its digest right; other files as `flipped`."""
    try:
        tree = json.loads(content)
    except ValueError:
        return flipped(draw, content)
    if not isinstance(tree, dict):
        return json.dumps(draw.choice(([], 7, "x", None, [tree]))).encode()
    tree.pop(SEAL, None)
    for _ in range(draw.choice((1, 1, 2, 3))):
        places = list(paths_of(tree))
        if not places:
            break
        *parents, last = draw.choice(places)
        parent: Any = tree
        for key in parents:
            parent = parent[key]
        parent[last] = changed_value(draw, parent[last])
    try:
        return json_bytes(tree)
    except (TypeError, ValueError):  # no JSON, as a date or an infinity
        return json.dumps(tree, default=str).encode()


def replaced(draw: random.Random, content: bytes) -> bytes:
    others = (b"", b"[]", b'["x"]\n', b"\xff\xfe", b"null", b"{}", b"[" * 5000)
    return draw.choice((*others, str(draw.choice(ZOO)).encode("utf-8", "replace")))


KINDS: tuple[Callable[[random.Random, bytes], bytes], ...] = (flipped, cut, of_another_type, of_another_type, replaced)


def damaged_case(draw: random.Random) -> tuple[str, list[str], dict[str, bytes]]:
    """(app, words, files) of a command over the finished study with one file damaged."""
    app, words, below = draw.choice(COMMANDS)
    files = dict(finished())
    name = draw.choice(sorted(name for name in files if name.startswith(below)))
    files[name] = draw.choice(KINDS)(draw, files[name])
    if draw.random() < 0.1:
        del files[name]
    return app, list(words), files
