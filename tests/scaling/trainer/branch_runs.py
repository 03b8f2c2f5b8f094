"""A small trunk with branches, and the runs that each branch must equal, trained for the tests in one process.

As a program, `DEVICE RUN_DIR ..`, that process."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from data.corpus import Corpus, prepare
from scaling.rundir.directory import RunDir
from scaling.rundir.prepare import prepare_run
from scaling.rundir.versions import package_versions
from scaling.study.run import RunSpec
from scaling.study.spec import load_study
from scaling.trainer import process
from scaling.trainer.turns import finish

from .. import forks

BATCH = 256
TRAINING: dict[str, Any] = {
    **{"schedule": "wsd", "branches": [10 * BATCH, 20 * BATCH], "decay_fraction": 0.3, "decay_shape": "sqrt"},
    **{"batch_tokens": BATCH, "warmup_tokens": 4 * BATCH, "lr": 4e-3, "n_checkpoints": 3, "checkpoint_dtype": "fp32"},
}


def study(
    folder: Path,
    archs: list[str],
    model: dict[str, Any] | None = None,
    source: str = "synthetic:0:200000",
    **training: Any,
) -> dict[str, RunDir]:
    """The runs of a prepared study by their place in it (trunk, d2.56k, d5.12k), of several archs with their names; and
    beside each branch the run of its schedule from the start (`-whole`)."""
    file = folder / "s.yaml"
    file.write_text(
        yaml.safe_dump(
            {
                "name": "s",
                "out": str(folder / "out"),
                "corpus": {"source": source},
                "grid": {"archs": archs, "sizes": ["6k"]},
                "model": model or {"context_length": 32, "chunk_size": 16},
                "training": {key: value for key, value in (TRAINING | training).items() if value is not None},
            }
        ),
        encoding="utf-8",
    )
    loaded = load_study(file)
    corpus = prepare(loaded.corpus.settings(), loaded.directory / "corpus")
    rundirs = {}
    for run in loaded.runs():
        whole = run.model_copy(update={"run_id": f"{run.run_id}-whole", "trunk": None, "branches": {}})
        for name, branch_run in ((run.branch, run), (f"{run.branch}-whole", whole)):
            key = name if len(archs) == 1 else f"{run.arch}-{name}"
            rundirs[key] = _prepared(loaded.run_directory(branch_run), branch_run, corpus)
    return rundirs


def _prepared(path: Path, run: RunSpec, corpus: Corpus) -> RunDir:
    about = (corpus.fingerprint, package_versions(), corpus.tokenizer.identity)
    return prepare_run(path, run, *about)


def train(runs: list[RunDir], processes: int = 1, device: str = "cpu", **environment: str) -> tuple[int, str]:
    """(exit code, output) of a process that trains them one after another, or of several."""
    words, fresh = [__name__, device, *(str(run.path) for run in runs)], device != "cpu"
    code, out, err = forks.run(*words, processes=processes, fresh=fresh, **environment)
    return code, out + err


def rows_after(rundir: RunDir, step: int) -> list[tuple[float, ...]]:
    """Step, tokens, loss, gradient norm and rate of every later step, to the bit."""
    keys = ("step", "n_tokens", "loss", "grad_norm", "lr")
    return [tuple(row[key] for key in keys) for row in rundir.checked_rows().rows if row["step"] > step]


def final_weights(rundir: RunDir) -> str:
    """The hash of the weights after the last step; they are fp32."""
    return rundir.checkpoints()[-1].weights_sha256


def equal(branch: RunDir, whole: RunDir) -> int:
    """Assert that a branch's rows and weights are those of the run from the start; returns the number of its rows."""
    begin = branch.spec().begins_after
    rows, expected = rows_after(branch, 0), rows_after(whole, begin)
    assert rows == expected and rows[0][0] == begin + 1 and rows[-1][0] == branch.spec().n_steps
    assert len(whole.checked_rows().rows) == whole.spec().n_steps and final_weights(branch) == final_weights(whole)
    return len(rows)


def origin(rundir: RunDir) -> dict[str, Any]:
    return dict(json.loads(rundir.run_json.read_text(encoding="utf-8"))["origin"])


def main() -> int:
    device, *paths = sys.argv[1:]
    codes = [finish(process.steps([path, "--device", device], started=time.perf_counter())) for path in paths]
    process.leave_group()
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    process.end_with(main)
