"""Held-out loss of real checkpoints of a small model, against the model called directly."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from analysis.evals.loss import LossSettings, evaluate_checkpoint, evaluate_runs, missing, window_starts, windows

from analysis.evals.baseline import ensure_baseline
from arch.config import ModelConfig
from arch.errors import InputError
from data.bigram import bigram_loss
from data.corpus import Corpus, CorpusSettings, prepare
from data.files import new_directory

CONTEXT = 32
SETTINGS = LossSettings(validation_tokens=25 * CONTEXT, batch_rows=4)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    source = tmp_path_factory.mktemp("text")
    for i in range(12):
        (source / f"{i:02d}.txt").write_text(f"document {i}: " + "the cat sat on the mät. " * (3 + i))
    target = tmp_path_factory.mktemp("study") / "corpus"
    return prepare(CorpusSettings(source=str(source), validation_fraction=0.5), target)


def write_checkpoint(study: Path, run_id: str, step: int, seed: int = 0) -> Path:
    from arch.lm import build_model

    config = ModelConfig("llama", 24, 1, 1, 32, vocab_size=257, context_length=CONTEXT)
    path = study / "runs" / run_id / "checkpoints" / f"{step:08d}"
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_directory(path, {"step": step, "n_tokens": step * 64, "run_id": run_id}) as temporary:
        build_model(config, seed).save_pretrained(temporary)
    return path


def test_windows_are_fixed_whole_and_spread() -> None:
    starts = window_starts(1001, 10, 200)
    assert len(starts) == 20
    assert (starts % 10 == 0).all() and (np.diff(starts) >= 10).all()
    assert starts[0] == 0 and starts[-1] >= 900 and starts[-1] + 11 <= 1001
    assert window_starts(1001, 10, 10**9).tolist() == list(range(0, 1000, 10))
    assert window_starts(1001, 10, 1).tolist() == [0]
    with pytest.raises(InputError, match="too few for one window"):
        window_starts(10, 10, 200)


def test_loss_equals_the_model_called_directly(tmp_path: Path, corpus: Corpus) -> None:
    import torch
    import torch.nn.functional as nnf

    from arch.lm import load_model

    checkpoint = write_checkpoint(tmp_path, "run", 7)
    result = evaluate_checkpoint(checkpoint, corpus, SETTINGS)
    assert result is not None
    model = load_model(checkpoint).eval()
    nats, targets = [], []
    for start in window_starts(len(corpus.validation), CONTEXT, SETTINGS.validation_tokens):
        row = torch.from_numpy(np.asarray(corpus.validation[start : start + CONTEXT + 1], dtype=np.int64))
        with torch.no_grad():
            logits = model(input_ids=row[None, :-1]).logits[0]
        nats += nnf.cross_entropy(logits, row[1:], reduction="none").tolist()
        targets += row[1:].tolist()
    n_bytes = sum(token < 256 for token in targets)
    assert 256 in targets, "the windows should hold an end of text, which has no bytes"
    assert result["n_tokens_scored"] == len(targets) == 25 * CONTEXT
    assert result["n_bytes_scored"] == n_bytes < len(targets)
    assert result["loss"] == pytest.approx(float(np.mean(nats)), rel=1e-6)
    assert result["perplexity"] == pytest.approx(math.exp(float(np.mean(nats))), rel=1e-5)
    assert result["bits_per_byte"] == pytest.approx(sum(nats) / math.log(2) / n_bytes, rel=1e-6)
    assert (result["run_id"], result["step"], result["n_tokens"]) == ("run", 7, 448)


def test_only_what_is_missing_is_evaluated(tmp_path: Path, corpus: Corpus) -> None:
    for step in (1, 2):
        write_checkpoint(tmp_path, "run", step, seed=step)
    runs = tmp_path / "runs"
    pending, warnings = missing(runs, ["run", "absent"], corpus.fingerprint, SETTINGS)
    assert [one.checkpoint.name for one in pending] == ["00000001", "00000002"] and not warnings
    told: list[str] = []
    assert evaluate_runs(pending, corpus.directory, SETTINGS, progress=lambda i, n, text: told.append(text)) == []
    assert len(told) == 2 and "held-out loss" in told[0]
    assert missing(runs, ["run"], corpus.fingerprint, SETTINGS) == ([], [])

    first, second = (json.loads(one.result.read_text()) for one in pending)
    assert first["weights_sha256"] != second["weights_sha256"] and first["loss"] != second["loss"]
    assert len(missing(runs, ["run"], "another corpus", SETTINGS)[0]) == 2
    assert len(missing(runs, ["run"], corpus.fingerprint, LossSettings(CONTEXT, 4))[0]) == 2
    write_checkpoint(tmp_path, "run", 2, seed=9)  # trained again: other weights under the same step
    stale, _ = missing(runs, ["run"], corpus.fingerprint, SETTINGS)
    assert [one.checkpoint.name for one in stale] == ["00000002"]


def test_a_wrong_checksum_is_skipped_with_a_warning(tmp_path: Path, corpus: Corpus) -> None:
    good, bad = write_checkpoint(tmp_path, "run", 1), write_checkpoint(tmp_path, "run", 2)
    content = bytearray((bad / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (bad / "model.safetensors").write_bytes(content)
    (good.parent / "00000003").mkdir()
    pending, warnings = missing(tmp_path / "runs", ["run"], corpus.fingerprint, SETTINGS)
    assert warnings == ["run: checkpoint 00000003 has no valid manifest; skipped"]
    warnings = evaluate_runs(pending, corpus.directory, SETTINGS)
    assert warnings == ["run: checkpoint 00000002 has a wrong checksum; skipped"]
    assert (tmp_path / "runs/run/evals/00000001/validation.json").exists()
    assert not (tmp_path / "runs/run/evals/00000002").exists()


def test_a_model_that_diverged_has_no_number(tmp_path: Path, corpus: Corpus) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    source = write_checkpoint(tmp_path, "run", 1)
    weights = {
        name: torch.full_like(tensor, torch.nan) for name, tensor in load_file(source / "model.safetensors").items()
    }
    with new_directory(source.parent / "00000002", {"step": 2, "n_tokens": 128, "run_id": "run"}) as temporary:
        save_file(weights, temporary / "model.safetensors", metadata={"format": "pt"})
        (temporary / "config.json").write_bytes((source / "config.json").read_bytes())
    result = evaluate_checkpoint(source.parent / "00000002", corpus, SETTINGS)
    assert result is not None
    assert result["loss"] is None and result["reason"] == "the loss is not finite"
    json.dumps(result, allow_nan=False)


def test_baseline_scores_the_windows_of_the_checkpoints_once(tmp_path: Path, corpus: Corpus) -> None:
    path = tmp_path / "results" / "bigram.json"
    found = ensure_baseline(corpus.directory, path, 32, SETTINGS)
    rows = np.concatenate(list(windows(corpus.validation, 32, SETTINGS)))
    assert found["loss"] == bigram_loss(corpus.train, rows, 257)
    n_bytes = int((rows[:, 1:] < 256).sum())
    assert found["n_tokens_scored"] == 25 * CONTEXT
    assert found["bits_per_byte"] == pytest.approx(found["loss"] / math.log(2) * rows[:, 1:].size / n_bytes)
    path.write_text(json.dumps(found | {"loss": 1.25}))
    assert ensure_baseline(corpus.directory, path, 32, SETTINGS)["loss"] == 1.25
    path.write_text(json.dumps(found | {"loss": 1.25, "corpus_fingerprint": "another"}))
    assert ensure_baseline(corpus.directory, path, 32, SETTINGS) == found
