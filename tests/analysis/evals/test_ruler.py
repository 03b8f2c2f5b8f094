"""RULER by lm-eval's tasks: local texts, draws that nothing else decides, what cannot be made is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analysis.evals.lmeval import fetch as fetching
from analysis.evals.lmeval import ruler
from analysis.evals.registry import entry_of
from analysis.evals.task import MissingData
from arch.errors import InputError
from tests.analysis.evals.test_lmeval_tasks import loaded
from tests.analysis.evals.test_named_tasks import named

pytest.importorskip("wonderwords", reason="RULER's words: pip install wonderwords")
NAME = "lm_eval:ruler"


@pytest.fixture(scope="module", autouse=True)
def few_words() -> Iterator[None]:
    """lm-eval joins every adjective with every noun at its import, and sorts these six million for 20 s."""
    import wonderwords

    words = wonderwords.RandomWord()._categories
    few = wonderwords.RandomWord(**{kind: of_kind[:300] for kind, of_kind in words.items()})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wonderwords, "RandomWord", lambda: few)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts made by hand in the layouts of the real ones; without abbreviations Punkt splits at every full stop."""
    folder = tmp_path_factory.mktemp("ruler data")
    (folder / "needle").mkdir()
    (folder / "needle/essay.txt").write_text("A short sentence of an essay. Another one follows it here. " * 900)
    english = folder / ruler.PUNKT / "tokenizers/punkt_tab/english"
    english.mkdir(parents=True)
    for name in ("abbrev_types.txt", "collocations.tab", "ortho_context.tab", "sent_starters.txt"):
        (english / name).write_text("")
    questions = [("Where is the cat?", "the mat"), ("Where is the dog?", "the yard"), ("Where is it?", "the sea")]
    squad = [
        {
            "context": f"It sits on {answer}.",
            "qas": [{"question": q, "is_impossible": False, "answers": [{"text": answer}]}],
        }
        for q, answer in questions
    ]
    (folder / ruler.SQUAD).write_text(json.dumps({"data": [{"paragraphs": squad}]}))
    hotpot = [{"question": q, "answer": a, "context": [[q[:9], [f"On {a}.", " Yes."]]]} for q, a in questions]
    (folder / ruler.HOTPOT).write_text(json.dumps(hotpot))
    return folder


def test_the_tasks_are_lm_evals() -> None:
    from lm_eval.tasks._yaml_loader import load_yaml

    from analysis.evals.lmeval.named import index

    assert sorted(load_yaml(index()["ruler"].yaml_path, resolve_func=False)["task"]) == sorted(ruler.TASKS)
    assert all(entry_of(f"lm_eval:{name}").kind is ruler.Ruler for name in ("ruler", *ruler.TASKS))


def test_scores_by_length_with_errors_and_what_was_left_out(folder: Path) -> None:
    task, model = named(NAME, folder, lengths=[1024, 2048], limit=2, batch_size=64), loaded(context_length=1024)
    prepared = task.prepare(model.tokenizer)
    made = prepared.tasks["tasks"]
    assert prepared.left_out.keys() == {"ruler_vt@1024", "ruler_vt@2048", "ruler_cwe@1024"}  # a byte is a token
    assert made.keys() == {f"{name}@{n}" for name in ruler.TASKS for n in (1024, 2048)} - prepared.left_out.keys()
    for name, of_length in made.items():
        docs = of_length.eval_docs
        assert len(docs) == 2 and all(doc["length"] <= int(name.partition("@")[2]) + ruler.ANSWER for doc in docs)
        for doc in docs:
            assert of_length.process_results(doc, [" and ".join(doc["outputs"])]) == {"score": 1.0}
            assert of_length.process_results(doc, ["no"]) == {"score": 0.0}
    values = task.evaluate(model, prepared)
    assert (values["n_tasks@1024"], values["n_tasks@2048"], values["n_documents"]) == (11, 12, 46)
    assert 0 <= values["score@1024"] <= 1 and values["score@2048_stderr"] >= 0 and values["extrapolated"]
    assert values["by_task"].keys() == {*ruler.TASKS} - {"ruler_vt"}
    assert values["score@2048"] == pytest.approx(sum(of["score@2048"] for of in values["by_task"].values()) / 12)
    assert values["n_truncated"] == 0 and 512 < values["n_tokens@2048"] < 2048
    assert any("not made" in line and "ruler_cwe@1024" in line for line in values["warnings"])

    single = named("lm_eval:niah_single_1", folder, lengths=[1024], limit=1)
    assert single.evaluate(model, single.prepare(model.tokenizer))["score@1024_stderr"] is None

    alone = named("lm_eval:niah_multivalue", folder, lengths=[2048], limit=2).prepare(model.tokenizer).tasks["tasks"]
    name = "niah_multivalue@2048"
    assert list(alone[name].eval_docs) == list(made[name].eval_docs)  # whatever is made before it


def test_words_are_drawn_where_a_tokenizer_has_room_for_them(folder: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(tmp_path)
    for name in ("ruler_vt", "ruler_cwe"):
        docs = list(ruler._task(name, 1024, 2, str(tmp_path), {}).eval_docs)
        assert docs == list(ruler._task(name, 1024, 2, str(tmp_path), {}).eval_docs)
        assert all(700 < doc["length"] <= 1024 and len(doc["outputs"]) >= 5 for doc in docs)


def test_what_is_missing_or_damaged_is_one_line(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingData) as error:
        named(NAME, tmp_path).data_hash()
    assert all(f"{name} (" in str(error.value) for name in ruler.WHAT) and "\n" not in str(error.value)
    assert named("lm_eval:ruler_fwe", None).data_hash() == ""  # made of nothing but draws
    with pytest.raises(MissingData, match="does not name"):
        named("lm_eval:ruler_qa_squad", None).data_hash()
    with pytest.raises(InputError, match="lengths"):
        named(NAME, folder, lengths=[100])
    with pytest.raises(InputError, match=r"texts of lm_eval:ruler are yours.*hotpot"):
        fetching.data_sets([NAME])
    (tmp_path / "ruler").mkdir()
    for content, why in (("{", "dev-v2.0.json: cannot be read"), ('{"data": [{}]}', "KeyError: 'paragraphs'")):
        (tmp_path / ruler.SQUAD).write_text(content)
        task: Any = named("lm_eval:ruler_qa_squad", tmp_path, lengths=[1024], limit=1)
        with pytest.raises(InputError, match=why):
            task.prepare(loaded().tokenizer)
