"""Other models as rows beside a study's: equal numbers for the same model, own tokenizers, what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from analysis.evals.hf_model import HfTokenizer, hf_checkpoint, load_hf, retokenised
from analysis.evals.model import token_nats
from arch.errors import InputError
from data.corpus import open_corpus
from scaling.checkpoints.export import export_hf
from scaling.cli.main import app
from tests.analysis.evals.small_study import CONTEXT, write_study
from tests.analysis.evals.test_named_tasks import SCIQ, write_rows

MORE = """evaluation:
  data: {folder}
  tasks: [perplexity, extrapolate, niah-easy, lm_eval:sciq]
  settings:
    perplexity: {{file: text.txt}}
    extrapolate: {{lengths: [16, 64], n_tokens: 256}}
    niah-easy: {{haystack: needle, first_length: 320, last_length: 352, n_lengths: 2, n_depths: 2, max_new_tokens: 6}}
    lm_eval:sciq: {{max_length: 200}}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of one evaluated checkpoint."""
    folder = tmp_path_factory.mktemp("own and foreign")
    (folder / "text.txt").write_text("To be, or not to be: that is the question. Ünïcode 数据. " * 20, encoding="utf-8")
    (folder / "needle").mkdir()
    (folder / "needle/a.txt").write_text("It rained that day, and the sea was grey. " * 40)
    write_rows(folder, "allenai/sciq/test.jsonl", SCIQ)
    write_study(folder, steps=1, archs="llama", more=MORE.format(folder=folder))
    done = CliRunner().invoke(app, ["eval", "worker", str(folder / "small.yaml")])
    assert done.exit_code == 0, done.output
    return folder


def bpe(folder: Path, texts: list[str]) -> None:
    """A byte-level BPE with a normalizer, as of GPT-NeoX, which no study's own tokenizer may have."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.normalizer, made.decoder = normalizers.NFC(), decoders.ByteLevel()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<|end|>"], initial_alphabet=alphabet)
    made.train_from_iterator(texts, trainer)
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>").save_pretrained(folder)


def foreign(folder: Path, kind: str) -> Path:
    """A tiny model of transformers' own, with random weights and a tokenizer of its own."""
    from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM

    torch.manual_seed(0)
    if kind == "gpt2":
        model: Any = GPT2LMHeadModel(GPT2Config(vocab_size=400, n_embd=16, n_layer=2, n_head=2, n_positions=48))
    else:
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        model = GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=408, max_position_embeddings=512, **sizes))
    model.save_pretrained(folder / kind)
    bpe(folder / kind, [(folder / "text.txt").read_text(encoding="utf-8")])
    return folder / kind


def values_of(folder: Path, name: str) -> dict[str, Any]:
    return {
        path.stem: json.loads(path.read_text())["values"]
        for path in (folder / "out/small/hf" / name / "evals").glob("*.json")
    }


def test_an_exported_checkpoint_scores_what_it_scores_at_home(folder: Path) -> None:
    (checkpoint,) = (folder / "out/small/runs").glob("*/checkpoints/*")
    export_hf(checkpoint, folder / "my export", "fp32")
    shown = CliRunner().invoke(app, ["eval", "hf", str(folder / "small.yaml"), str(folder / "my export")])
    assert shown.exit_code == 0, shown.output
    assert "hf:my export" in shown.stdout and "bits_per_byte" in shown.stdout
    theirs = values_of(folder, "my export")
    assert theirs.keys() == {"validation", "perplexity", "extrapolate", "niah-easy", "lm_eval:sciq"}
    for name, values in theirs.items():
        own = json.loads(next((folder / "out/small/runs").glob(f"*/evals/*/{name}.json")).read_text())["values"]
        for key, value in own.items():
            if key not in ("window_nats", "warnings"):
                wanted = pytest.approx(value, rel=2e-6) if isinstance(value, float) else value
                assert values[key] == wanted, (name, key)
    again = CliRunner().invoke(app, ["eval", "hf", str(folder / "small.yaml"), str(folder / "my export"), "--json"])
    assert json.loads(again.stdout)["done"] == 0
    table = CliRunner().invoke(app, ["eval", "study", str(folder / "small.yaml")])
    assert "hf:my export" in table.stdout and table.exit_code == 0


def test_a_model_of_transformers_reads_the_text_in_its_own_tokens(folder: Path) -> None:
    path = foreign(folder, "gpt_neox")
    shown = CliRunner().invoke(app, ["eval", "hf", str(folder / "small.yaml"), str(path)])
    assert shown.exit_code == 0, shown.output
    values = values_of(folder, "gpt_neox")
    model = load_hf(path, "cpu")
    text = (folder / "text.txt").read_text(encoding="utf-8")
    ids = [model.tokenizer.eot_id, *model.tokenizer.encode(text)]
    assert values["perplexity"]["n_tokens_scored"] == len(ids) - 1
    assert model.tokenizer.n_bytes[ids].sum() == len(text.encode())
    with torch.no_grad():
        logits = model.model.hf(torch.tensor([ids[:65]])).logits[0, :-1].log_softmax(-1)  # type: ignore[attr-defined]
    nats = -logits.gather(1, torch.tensor(ids[1:65])[:, None])[:, 0].numpy()
    assert token_nats(model, np.array([ids[:65]]))[0] == pytest.approx(nats, abs=1e-5)
    loss, bits = values["perplexity"]["loss"], values["perplexity"]["bits_per_byte"]
    assert bits == pytest.approx(loss * (len(ids) - 1) / math.log(2) / len(text.encode()))

    corpus = open_corpus(folder / "out/small/corpus")
    tokens, (part,) = retokenised(corpus, model.tokenizer)
    assert part.n_tokens == len(tokens) < len(corpus.validation)
    decoded = model.tokenizer.decode_bytes(tokens)
    assert decoded == corpus.tokenizer.decode_bytes(corpus.validation)
    assert values["validation"]["n_bytes_scored"] <= len(decoded)


def test_what_a_model_cannot_read_is_refused(folder: Path) -> None:
    path = foreign(folder, "gpt2")
    shown = CliRunner().invoke(app, ["eval", "hf", str(folder / "small.yaml"), str(path), "--tasks", "extrapolate,csr"])
    assert shown.exit_code == 1 and "reads at most 48 tokens, because it has learned its positions" in shown.output
    assert "8 more" in shown.output or "does not exist" in shown.output
    with pytest.raises(InputError, match="no model of transformers"):
        hf_checkpoint(folder / "needle", folder)
    (folder / "pickled").mkdir()
    for name in ("config.json", "pytorch_model.bin"):
        (folder / "pickled" / name).write_text("{}")
    with pytest.raises(InputError, match="pickled, which can run code"):
        hf_checkpoint(folder / "pickled", folder)


def test_no_code_of_a_folder_runs(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "stranger"
    path.mkdir()
    for file in foreign(folder, "gpt2").iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    config = json.loads((path / "config.json").read_text()) | {"model_type": "stranger"}
    config["auto_map"] = {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}
    (path / "config.json").write_text(json.dumps(config))
    (path / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(InputError, match="needs code of its own, which is not run"):
        load_hf(path, "cpu")
    assert not (tmp_path / "ran").exists()
    study = folder / "out/small"
    hf_checkpoint(folder / "gpt2", study)
    (tmp_path / "gpt2").mkdir()
    for file in (folder / "gpt2").iterdir():
        (tmp_path / "gpt2" / file.name).write_bytes(file.read_bytes())
    with pytest.raises(InputError, match="rename one of the folders"):
        hf_checkpoint(tmp_path / "gpt2", study)


def test_bytes_of_a_sentencepiece_vocabulary() -> None:
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE({"<s>": 0, "▁the": 1, "<0xE6>": 2, "é": 3}, [], byte_fallback=True, unk_token="<s>"))
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = HfTokenizer(PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<s>"), "sp")
    assert [tokenizer.bytes_of(i) for i in range(4)] == [b"", b" the", b"\xe6", "é".encode()]
    assert CONTEXT
