"""Every named task runs without a network on rows made by hand, and scores what lm-eval scores."""

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from analysis.evals.lmeval.harness import CountingLM, hf_model, hf_tokenizer, local_task, merge_references
from analysis.evals.lmeval.rows import read_rows as read_checked
from analysis.evals.lmeval.sets import CSR, DATA, PRESETS, SCROLLS, SUPERGLUE, TASKS
from analysis.evals.lmeval.task import LmEvalTask as make
from analysis.evals.model import LoadedModel
from analysis.evals.task import TaskContext
from arch.errors import InputError
from arch.model.lm import build_model
from arch.presets import preset
from data.tokenizer import get_tokenizer

ROWS = Path(__file__).parent / "lmeval_rows"
SHARED = Path(__file__).resolve().parents[4] / "shared/data"
WINDOW = 192


def loaded(arch="hgrn2", context_length=WINDOW, seed=0):
    config = preset(arch, "14k", vocab_size=257, context_length=context_length, init_std=0.08)
    return LoadedModel(
        build_model(config, seed).eval(),
        config,
        get_tokenizer("bytes"),
        "cpu",
        False,
        context_length,
        Path("checkpoint"),
    )


def read_rows(path):
    """The rows of any file of the data folder."""
    name = next(name for name, task in TASKS.items() if str(path).endswith(f"/{DATA[task.data].file}"))
    return read_checked(path, name, TASKS[name].data)


def run(name, model, rows=ROWS, **settings):
    task = make(name, TaskContext(Path("corpus"), rows, {name: settings} if settings else {}))
    return task.evaluate(model, task.prepare(model.tokenizer))


@pytest.fixture(scope="module")
def model():
    return loaded()


@pytest.mark.parametrize("name", TASKS)
def test_every_task_runs_offline(name, model, monkeypatch):
    import socket

    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: pytest.fail(f"{name} asked for {a[0]}"))
    rows = read_rows(ROWS / DATA[TASKS[name].data].file)
    n_documents = len(merge_references(rows)) if TASKS[name].scrolls else len(rows)
    assert 3 <= len(rows) <= 5
    task = make(name, TaskContext(Path("corpus"), ROWS, {name: {"max_new_tokens": 12}}))
    values = task.evaluate(model, task.prepare(model.tokenizer))
    assert values["n_documents"] == n_documents and values["n_requests"] >= n_documents
    for metric in TASKS[name].metrics:
        most = 100 if TASKS[name].scrolls and not metric.startswith("acc") else 1
        if "perplexity" in metric or "bits" in metric:
            assert values[metric] > 1
        else:
            assert 0 <= values[metric] <= most
    assert not [key for key in values if key.startswith("fewshot")] and values["max_length"] == WINDOW


def test_the_presets_name_what_the_paper_ran():
    assert len(CSR) == 8 and len(SUPERGLUE) == 8 and len(SCROLLS) == 7
    assert set().union(*PRESETS.values()) == set(TASKS)
    files = {str(path.relative_to(ROWS)) for path in ROWS.rglob("*.jsonl")}
    assert files == {data.file for data in DATA.values()} == {DATA[task.data].file for task in TASKS.values()}


class Judge(CountingLM):
    """Knows how likely the answers are from `likely`, and nothing else."""

    likely = staticmethod(lambda answer: 0.0)

    def _loglikelihood_tokens(self, requests, disable_tqdm=False, override_bs=None):
        return [(float(self.likely(texts[1])), True) for texts, *_ in requests]


def judged(name, rows, likely):
    from lm_eval.evaluator import evaluate

    tokenizer = hf_tokenizer(get_tokenizer("bytes"))
    lm = Judge(hf_model(loaded().model), tokenizer, WINDOW, 4, 8)
    lm.likely = likely
    return evaluate(lm=lm, task_dict={name: local_task(name, rows)}, bootstrap_iters=10)["results"][name]


@pytest.mark.parametrize(
    ("name", "answers", "first"), [("piqa", ("sol1", "sol2"), 0), ("siqa", ("answerA", "answerB", "answerC"), 1)]
)
def test_right_answers_score_1(name, answers, first):
    rows = read_rows(ROWS / DATA[name].file)
    right = {row[answers[int(row["label"]) - first]] for row in rows}
    wrong = {row[answer] for row in rows for answer in answers} - right
    for chosen, score in ((right, 1.0), (wrong, 0.0)):
        assert judged(name, rows, lambda text, chosen=chosen: text.strip() in chosen)["acc,none"] == score


def test_multirc_by_answers_and_by_questions():
    """Label 1 is a right answer, to which "yes" is the right judgement: lm-eval's own choices say the contrary."""
    rows = read_rows(ROWS / DATA["multirc"].file)
    questions = [(row["idx"]["paragraph"], row["idx"]["question"], row["label"]) for row in rows]
    assert questions == [(0, 0, 1), (0, 0, 0), (1, 0, 1)]
    right = {row["answer"]: "yes" if row["label"] else "no" for row in rows}

    def truth(choice):
        return next(word for answer, word in right.items() if choice.strip().startswith(answer))

    for word, acc, em in (
        (truth, 1.0, 1.0),
        (lambda choice: "yes", 2 / 3, 1 / 2),
        (lambda choice: "no", 1 / 3, 0.0),
    ):
        results = judged("multirc", rows, lambda text, word=word: text.endswith(word(text)))
        assert (results["acc,none"], results["em,none"]) == (pytest.approx(acc), em)


def shared_rows(tmp_path):
    """The first rows of the real PIQA, LAMBADA and WikiText-2, in the hub's form."""
    if not SHARED.is_dir():
        pytest.skip("no ../shared folder: real evaluation data are not part of the repository")
    labels = (SHARED / "piqa/valid-labels.lst").read_text().split()
    lines = (SHARED / "piqa/valid.jsonl").read_text().splitlines()
    piqa = [json.loads(line) | {"label": int(label)} for line, label in zip(lines[:24], labels, strict=False)]
    lambada = [json.loads(line) for line in (SHARED / "lambada/lambada_test.jsonl").read_text().splitlines()[:16]]
    text = (SHARED / "wikitext-2/test.txt").read_text()
    starts = [heading.start() for heading in re.finditer(r"(?m)^ = [^=].*[^=] = $", text)][:3]
    pages = [{"page": text[a:b][:3000]} for a, b in pairwise(starts)]
    for name, rows in (("piqa", piqa), ("lambada", lambada), ("wikitext", pages)):
        path = tmp_path / DATA[name].file
        path.parent.mkdir(parents=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    shutil.copytree(ROWS / "scrolls", tmp_path / "scrolls")
    return tmp_path


REAL_WINDOW = 640  # holds the longest answer of those rows
REAL = ("piqa", "lambada", "wikitext", "scrolls-narrativeqa")


def test_our_adapter_equals_lm_evals_own_class(tmp_path):
    """lm-eval's HFLM over transformers' LLaMA with the same weights, and over ours: multiple choice, one continuation,
    rolling windows, generation."""
    from lm_eval.evaluator import evaluate
    from lm_eval.models.huggingface import HFLM

    from arch.hf.convert import to_hf

    class Peer(HFLM):
        max_gen_toks = 16  # a class attribute of theirs, by default 256

    rows = shared_rows(tmp_path)
    model = loaded("llama", REAL_WINDOW)
    theirs = to_hf(model.model)
    for name in REAL:
        ours = run(name, model, rows, max_new_tokens=16, batch_size=4)
        for peer, tolerance in ((hf_model(model.model), 0.0), (theirs, 2e-6)):
            lm = Peer(
                pretrained=peer, tokenizer=hf_tokenizer(get_tokenizer("bytes")), max_length=REAL_WINDOW, batch_size=4
            )
            task = local_task(name, read_rows(rows / DATA[TASKS[name].data].file))
            with torch.no_grad():
                scores = evaluate(lm=lm, task_dict={name: task}, bootstrap_iters=10)["results"][name]
            for metric in TASKS[name].metrics:
                assert ours[metric] == pytest.approx(scores[f"{metric},none"], rel=tolerance, abs=0.0), (name, metric)


@pytest.mark.parametrize("name", ["piqa", "lambada", "wikitext", "scrolls-narrativeqa"])
def test_requests_are_built_for_the_first_model_and_asked_of_all(name, model, monkeypatch):
    other = loaded(seed=1)
    task = make(name, TaskContext(Path("corpus"), ROWS, {name: {"max_new_tokens": 12}}))
    prepared = task.prepare(model.tokenizer)
    results = []
    for asked_model in (model, other, model):
        values = task.evaluate(asked_model, prepared)
        results.append((values, [request.resps for request in prepared.tasks["tasks"][name].instances]))
        monkeypatch.setattr(
            type(prepared.tasks["tasks"][name]), "fewshot_context", lambda *a, **k: pytest.fail("built again")
        )
    monkeypatch.undo()
    assert results[2] == results[0] and results[1][1] != results[0][1]
    assert results[1][0] == run(name, other, max_new_tokens=12)


def test_an_answer_ends_with_its_end_of_text_in_every_batch_size():
    """Also where other rows of the batch go on."""
    lines = [row["input"] for row in read_rows(ROWS / DATA["narrative_qa"].file)]
    adapted = loaded()
    end = get_tokenizer("bytes").eot_id

    def texts(size):
        tokenizer = hf_tokenizer(get_tokenizer("bytes"))
        lm = CountingLM(hf_model(adapted.model), tokenizer, WINDOW, size, 24)
        requests = [type("Request", (), {"args": (line, {"until": ["\n\n"]})})() for line in lines]
        with torch.no_grad():
            return lm.generate_until(requests)

    # in some answers a byte that no prompt has becomes end-of-text: what stood behind it must be gone
    before, prompts = texts(1), "".join(lines)
    byte = next(c for text in before for c in text[1:] if c.isascii() and c not in prompts)
    assert any(byte not in text for text in before)
    with torch.no_grad():
        weight = adapted.model.decoder.embedding.weight
        weight[[ord(byte), end]] = weight[[end, ord(byte)]]
    assert texts(1) == texts(3) == texts(16) == [text.partition(byte)[0] for text in before]


def test_what_is_cut_is_counted(model):
    values = run("boolq", model, max_length=40)
    assert values["n_truncated"] == values["n_requests"] == 6
    assert run("boolq", loaded(context_length=512))["n_truncated"] == 0
    cut = run("scrolls-qmsum", model, max_length=60, max_new_tokens=8)
    assert (cut["n_truncated"], cut["n_requests"], cut["max_new_tokens"]) == (3, 3, 8)
    assert run("piqa", model, limit=2)["n_documents"] == 2


def test_bad_input_is_one_line(tmp_path, model):
    with pytest.raises(InputError, match=r"max_new_tokens=500 leaves no room for a prompt in a window of 192 tokens"):
        run("scrolls-qmsum", model, max_new_tokens=500)
    with pytest.raises(InputError, match="an answer is longer than the window of 4 tokens"):
        run("piqa", model, max_length=4)
    with pytest.raises(InputError, match="scaling eval fetch --tasks piqa"):
        make("piqa", TaskContext(Path("corpus"), tmp_path)).data_hash()
    path = tmp_path / DATA["piqa"].file
    path.parent.mkdir()
    for content, message in (
        ("", "has no rows"),
        ("nonsense\n", "line 1 is not JSON"),
        ("[1]\n", "line 1 is not a JSON object"),
        ('{"goal": "a"}\n', "line 1: key 'sol1' is missing: add it"),
    ):
        path.write_text(content)
        with pytest.raises(InputError, match=message) as error:
            run("piqa", model, tmp_path)
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="unknown key 'limits'"):
        make("piqa", TaskContext(Path("corpus"), ROWS, {"piqa": {"limits": 3}}))


def test_a_window_too_short_for_an_answer_is_refused_with_the_length_that_it_needs(tmp_path, model):
    row = {"goal": "a", "sol1": "b" * 300, "sol2": "c" * 1200, "label": 0}
    (tmp_path / DATA["piqa"].file).parent.mkdir()
    (tmp_path / DATA["piqa"].file).write_text(json.dumps(row) + "\n")
    message = r"window of 256 tokens, it needs 1201: set evaluation.settings.piqa.max_length: 1201$"
    with pytest.raises(InputError, match=message):
        run("piqa", model, tmp_path, max_length=256)
    run("piqa", model, tmp_path, max_length=1201)
