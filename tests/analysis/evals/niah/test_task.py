"""The whole task: prompts as they should be, the shared reading equal to each prompt read whole, models that know."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from analysis.evals.niah.prompts import read_haystack
from analysis.evals.niah.retrieve import batches, generate_answers, read_up_to_question
from analysis.evals.niah.settings import VARIANTS
from analysis.evals.niah.task import Niah as make
from analysis.evals.task import Reader, TaskContext
from arch.errors import InputError
from arch.model.decode import generate_tokens
from arch.registry import KNOWN
from data.tokenizer import get_tokenizer

from .oracle import copies_the_fact, reader, untrained

BYTES = get_tokenizer("bytes")
SMALL = {"first_length": 500, "last_length": 1100, "n_lengths": 3, "n_depths": 5, "max_new_tokens": 16}
ESSAYS = Path(__file__).resolve().parents[5] / "shared/data"
SENTENCE = "The cat sat on mat {} and 3.14 was not a number. "


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    data = tmp_path_factory.mktemp("data")
    (data / "needle").mkdir()
    for part in range(3):
        text = "".join(SENTENCE.format(part * 100 + i) for i in range(60))
        (data / "needle" / f"{part}.txt").write_text(text, encoding="utf-8")
    (data / "needle" / "LICENSE.txt").write_text("Not a part of the text.")
    return TaskContext(data / "no-corpus", data, {name: SMALL for name in VARIANTS})


def run(task, model):
    return task.evaluate(model, task.prepare(model.tokenizer))


@pytest.mark.parametrize("name", VARIANTS)
def test_prompts_are_as_long_as_asked_and_hold_everything(name, context):
    task = make(name, context)
    assert task.name == name
    prompts = task.prepare(BYTES)
    assert list(prompts.columns) == [500, 800, 1100]
    for length, cells in prompts.columns.items():
        assert [cell.depth_percent for cell in cells] == [0, 25, 50, 75, 100]
        for cell in cells:
            ids = prompts.ids(cell)
            assert len(ids) + 16 == length and ids[0] == BYTES.eot_id
            text = BYTES.decode(ids[1:])
            assert text.count(cell.needle.statement) == 1
            assert text.endswith(f"\n\nQuestion: {cell.needle.question}\nAnswer:")
            assert text.count(cell.needle.question) == (2 if task.variant.easy else 1)
            before = text[: text.index(cell.needle.statement)].removesuffix("\n")
            if not task.variant.easy and 0 < cell.depth_percent < 100:
                assert before.rstrip()[-1] == "." and not before.endswith("3.")
                place_of_it = cell.insert_at / cell.n_haystack * 100
                assert cell.depth_percent - 20 < place_of_it <= cell.depth_percent
        assert cells[0].insert_at == 0 and cells[-1].insert_at == cells[-1].n_haystack


def test_classic_needle_and_facts(context):
    classic, facts = (make(name, context).prepare(BYTES) for name in ("niah-easy", "niah-easy-facts"))
    assert len({cell.needle for cells in classic.columns.values() for cell in cells}) == 1
    assert len({cell.needle.answer for cells in facts.columns.values() for cell in cells}) == 15


@pytest.mark.parametrize("mode", ["easy", "standard"])
def test_a_model_that_copies_the_needle_scores_100(mode, context):
    values = run(make(f"niah-{mode}-facts", context), reader(copies_the_fact))
    assert values["acc_avg"] == values["weighted_avg_acc"] == values["niah_score"] == 100.0
    assert values["acc_shuffled"] == 0.0
    assert values["scores"] == [[10] * 5] * 3
    json.dumps(values, allow_nan=False)


def test_a_model_that_says_one_thing_scores_0(context):
    for name in ("niah-easy", "niah-standard-facts"):
        values = run(make(name, context), reader(lambda text: " nothing at all"))
        assert values["acc_avg"] == values["weighted_avg_acc"] == values["niah_score"] == 0.0
        assert values["answers"][2][4] == "nothing at all"


def test_classic_answers_of_a_model_that_knows_them(context):
    task = make("niah-standard", place_with(context, "niah-standard", max_new_tokens=64))
    values = run(task, reader(lambda text: " eat a sandwich in Dolores Park"))
    assert 0 < values["acc_avg"] < 100 and "acc_shuffled" not in values


def place_with(context, name, **changes):
    return TaskContext(context.corpus, context.data, {name: SMALL | changes})


def test_lengths_beyond_the_context_are_flagged_and_llama_warns(context):
    task = make("niah-easy-facts", context)
    inside = run(task, reader(copies_the_fact, context_length=1100))
    assert inside["extrapolated"] is False and inside["acc_extrapolated"] is None and inside["acc_trained"] == 100.0
    beyond = run(task, reader(copies_the_fact, context_length=800))
    assert beyond["extrapolated"] is True and beyond["acc_extrapolated"] == beyond["acc_trained"] == 100.0
    assert inside["warnings"] == beyond["warnings"] == []
    (warning,) = run(task, untrained("llama", context_length=800))["warnings"]
    assert "800" in warning and "1,100" in warning


@pytest.mark.parametrize(("arch", "reset"), [*((arch, False) for arch in KNOWN), ("llama", True), ("hgrn2", True)])
def test_shared_reading_is_reading_each_prompt_whole(arch, reset, context):
    """Every cell's answer, and the state in front of its question, against the whole prompt in one pass (float64); also
    of a model trained with reset_at_documents."""
    model = untrained(arch)
    model.model.decoder.document_start_id = BYTES.eot_id if reset else None
    smaller = place_with(context, "niah-easy-facts", first_length=300, n_depths=3)
    prompts = make("niah-easy-facts", smaller).prepare(BYTES)
    cells = prompts.columns[300]
    answers = generate_answers(model, prompts, cells, 6)
    with model.reading():
        for cell, answer in zip(cells, answers, strict=True):
            ids = torch.from_numpy(prompts.ids(cell))[None]
            steps = torch.stack(list(generate_tokens(model.model, ids, 6, eos_id=BYTES.eot_id)), 1)[0].tolist()
            whole = BYTES.decode(steps).split("<|endoftext|>")[0].lstrip().partition("\n")[0].strip()
            assert answer == whole
        state = read_up_to_question(model, prompts, cells)
        for row, cell in enumerate(cells):
            ids = torch.from_numpy(prompts.ids(cell)[: -len(cell.question_ids)])[None]
            expected = model.model(ids, use_cache=True).cache
            for tensor, wanted in zip(state.tensors(), expected.tensors(), strict=True):
                torch.testing.assert_close(tensor[row : row + 1], wanted, rtol=1e-8, atol=1e-9)


def test_what_precedes_the_needle_is_read_once(context):
    """Tokens through the model: start, haystack, then for each cell needle, what follows it, question and answer."""
    model = reader(copies_the_fact)
    prompts = make("niah-easy-facts", context).prepare(BYTES)
    cells = prompts.columns[1100]
    generate_answers(model, prompts, cells, 16)
    n_steps = 1 + 7 + 1 - 1  # a blank, the digits and the line's end, of which the last is never read
    n_read = [len(c.needle_ids) + c.n_haystack - c.insert_at + len(c.question_ids) + n_steps for c in cells]
    assert model.model.n_tokens == 1 + cells[-1].n_haystack + sum(n_read)
    assert model.model.n_tokens < 0.8 * sum(len(prompts.ids(cell)) for cell in cells)


def test_more_rows_than_fit_into_memory_make_other_batches(context):
    """Needles and questions of a batch are of equal length in tokens."""
    prompts = make("niah-easy-facts", context).prepare(BYTES)
    cells = [cell for of_length in prompts.columns.values() for cell in of_length]
    cells[3] = replace(cells[3], needle_ids=cells[3].needle_ids[:-1])
    groups = list(batches(cells, 2))
    assert sorted(i for group in groups for i in group) == list(range(15))
    assert all(len(group) <= 2 and len({len(cells[i].needle_ids) for i in group}) == 1 for group in groups)
    model = untrained("hgrn2")
    together = generate_answers(model, prompts, prompts.columns[800], 8)
    assert together == [generate_answers(model, prompts, [cell], 8)[0] for cell in prompts.columns[800]]


def test_settings_and_data_decide_the_key(context, tmp_path):
    task = make("niah-easy", context)
    assert task.settings()["n_depths"] == 5 and json.dumps(task.settings())
    assert task.data_hash() == make("niah-standard", context).data_hash()
    (tmp_path / "needle").mkdir()
    for path in sorted((context.data / "needle").glob("[0-9].txt")):
        (tmp_path / "needle" / path.name).write_bytes(path.read_bytes())
    elsewhere = {"niah-easy": SMALL | {"haystack": str(tmp_path / "needle")}}
    assert make("niah-easy", TaskContext(context.corpus, None, elsewhere)).data_hash() == task.data_hash()
    moved = TaskContext(context.corpus, tmp_path, context.settings)
    assert make("niah-easy", moved).data_hash() == task.data_hash()
    (tmp_path / "needle/0.txt").write_text("Other text.")
    assert make("niah-easy", moved).data_hash() != task.data_hash()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"last_length": 99_000}, "the haystack has 8,934 tokens and 98,[0-9]{3} are asked for"),
        ({"first_length": 100}, "leaves no room"),
        ({"haystack": "nowhere"}, "nowhere does not exist: put text into it"),
        ({"n_depth": 3}, "did you mean 'n_depths'"),
        ({"threshold": 1}, "threshold"),
    ],
)
def test_bad_settings_are_one_line(changes, message, context):
    with pytest.raises(InputError, match=message) as error:
        make("niah-easy-facts", place_with(context, "niah-easy-facts", **changes)).prepare(BYTES)
    assert "\n" not in str(error.value) and "niah-easy-facts" in str(error.value)


def test_prompts_that_cannot_be_are_refused_as_soon_as_there_is_a_tokenizer(context):
    task = make("niah-easy", place_with(context, "niah-easy", last_length=99_000))
    task.check(Reader(64, None, 1.0, None))
    with pytest.raises(InputError, match="niah-easy: the haystack has 8,934 tokens"):
        task.check(Reader(64, BYTES, 1.0, None))


def test_a_missing_or_empty_haystack(context, tmp_path):
    with pytest.raises(InputError, match="needle does not exist: put text into it"):
        make("niah-easy", TaskContext(tmp_path, tmp_path)).data_hash()
    (tmp_path / "needle").mkdir()
    with pytest.raises(InputError, match=r"holds no \.txt file"):
        make("niah-easy", TaskContext(tmp_path, tmp_path)).data_hash()
    (tmp_path / "needle/a.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(InputError, match=r"a\.txt: cannot be read .*utf-8"):
        make("niah-easy", TaskContext(tmp_path, tmp_path)).prepare(BYTES)
    (tmp_path / "needle/b.txt").symlink_to(tmp_path / "gone")
    with pytest.raises(InputError, match=r"^niah-easy: haystack: .*needle: cannot be read"):
        make("niah-easy", TaskContext(tmp_path, tmp_path)).data_hash()


def test_sentences_end_where_tokens_do(context):
    haystack = read_haystack(context.data / "needle", BYTES, 10**6)
    text = BYTES.decode(haystack.ids)
    ends = np.flatnonzero(haystack.ends)
    assert all(i == 0 or (text[:i].rstrip().endswith(".") and not text[i : i + 1].isdigit()) for i in ends.tolist())
    assert haystack.insert_at(1000, 50) == max(i for i in ends if i <= 500)
    assert "Not a part" not in text


@pytest.mark.parametrize("name", ["niah-easy", "niah-standard-facts"])
def test_the_papers_grid_on_essays(name):
    """All 1,225 prompts: each of its length, none cut short, needles where they should be."""
    if not (ESSAYS / "needle").is_dir():
        pytest.skip(f"{ESSAYS}/needle is not there")
    prompts = make(name, TaskContext(ESSAYS, ESSAYS)).prepare(BYTES)
    assert [len(cells) for cells in prompts.columns.values()] == [35] * 35
    assert len(prompts.haystack) < 16_000
    for length, cells in prompts.columns.items():
        places = [cell.insert_at for cell in cells]
        assert places == sorted(places)
        for cell in cells:
            assert cell.n_tokens + 50 == length
            share = 100 * cell.insert_at / cell.n_haystack
            assert share <= cell.depth_percent + 1e-9 and cell.n_haystack * (cell.depth_percent - share) / 100 < 700
