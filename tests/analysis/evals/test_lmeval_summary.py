"""The downstream table: one line a checkpoint, averages marked where they lack a task."""

import pytest

from analysis.evals.lmeval.sets import SCROLLS, SUPERGLUE, TASKS
from analysis.evals.lmeval.summary import TABLE4, show_summary, summary

from .small_study import stored_result


def result(run_id, step, task, settings=None, version=None, **values):
    version = version or (TASKS[task].version if task in TASKS else 1)
    return stored_result(run_id, step, task, values, version=version, settings=settings or {}, n_tokens=step * 10)


def test_lines_and_notes():
    full = [result("a", 20, task, **{TASKS[task].metrics[0]: 0.5}) for task in TABLE4]
    rest = [
        result("a", 10, "piqa", acc=0.9),
        result("a", 20, "lambada", perplexity=12.3456, acc=0.1),
        result("a", 20, "validation", loss=1.0),
        result("b", 10, "piqa", acc=0.25),
        result("b", 10, "boolq", acc=0.75),
    ]
    rows = summary([*rest, *full])
    assert [(row.run_id, row.step, row.n_tokens) for row in rows] == [("a", 20, 200), ("b", 10, 100)]
    assert (
        rows[0].columns["csr_avg"] == 50.0
        and rows[0].columns["lambada_ppl"] == 12.3456
        and rows[0].columns["siqa"] is None
    )
    assert rows[1].columns["csr_avg"] == 50.0 and set(rows[1].missing["csr_avg"]) == set(TABLE4) - {"piqa", "boolq"}
    heads, cells, notes = show_summary(rows)
    assert heads[:4] == ("run", "step", "boolq", "piqa") and "scrolls_plain" not in heads
    assert cells[1][heads.index("csr_avg")] == "50.00*" and cells[0][heads.index("csr_avg")] == "50.00"
    assert cells[1][heads.index("lambada_ppl")] == "-"
    assert "* csr_avg without hellaswag, winogrande, arc-easy, arc-challenge, openbookqa" in notes
    assert [row.step for row in summary([*rest, *full], all_steps=True)] == [10, 20, 10]
    assert summary([]) == [] and show_summary([]) == (("run", "step"), [], [])


def test_table_4s_columns_in_its_order():
    values = {"wikitext": {"word_perplexity": 20.0}, "lambada": {"perplexity": 9.0}}
    values |= {task: {TASKS[task].metrics[0]: 0.5} for task in (*TABLE4, "siqa")}
    values |= {task: dict.fromkeys(TASKS[task].metrics, 8.0) for task in SCROLLS}
    values["niah-easy"] = {"weighted_avg_acc": 12.3, "acc_avg": 99.0}
    rows = summary([result("a", 10, task, **metrics) for task, metrics in values.items()])
    heads, cells, notes = show_summary(rows)
    csr = ("boolq", "piqa", "hellaswag", "winogrande", "arc-easy", "arc-challenge", "openbookqa", "csr_avg")
    paper = (*csr, "wikitext_ppl", "lambada_ppl", "niah_easy", "scrolls_plain")
    assert heads == ("run", "step", *paper, "siqa", "scrolls_official")
    assert cells[0][2:14] == (*["50.00"] * 8, "20.00", "9.00", "12.30", "8.00") and notes == []


def test_a_note_names_the_columns_of_table_4_without_values():
    given = [result("a", 10, "piqa", acc=0.5), result("a", 10, "boolq", acc=0.5)]
    assert show_summary(summary(given))[2][-1] == (
        "of table 4 not here: hellaswag, winogrande, arc-easy, arc-challenge, openbookqa, wikitext_ppl, lambada_ppl, "
        "niah_easy, scrolls_plain (scaling eval STUDY --tasks hellaswag,winogrande,arc-easy,arc-challenge,openbookqa,"
        "wikitext,lambada,niah-easy,scrolls)"
    )
    (note,) = show_summary(summary([result("a", 10, "niah-easy", weighted_avg_acc=1.0)]))[2]
    assert note.endswith("(scaling eval STUDY --tasks csr,wikitext,lambada,scrolls)")


def test_a_note_names_tasks_evaluated_on_less_than_all():
    small = {"n_lengths": 3, "last_length": 2000}
    given = [
        result("a", 10, "niah-easy", small, weighted_avg_acc=50.0),
        result("b", 10, "niah-easy", {"n_lengths": 35, "digits": 5}, weighted_avg_acc=50.0),
        result("b", 10, "piqa", {"limit": 100}, acc=0.5),
        result("b", 10, "boolq", {"limit": None}, acc=0.5),
    ]
    notes = show_summary(summary(given))[2]
    assert notes[1:3] == [
        "niah-easy on another grid than the paper's: 3 lengths from 1,000 to 2,000 tokens x 35 depths",
        "piqa on its first 100 documents",
    ]


def test_superglue_has_two_averages_and_no_result_of_another_version():
    """MultiRC's first version had right and wrong exchanged."""
    given = [result("a", 10, task, **{TASKS[task].metrics[0]: 0.5}) for task in SUPERGLUE if task != "multirc"]
    old = result("a", 10, "multirc", version=1, acc=0.1)
    for row in summary([*given, old]):
        assert row.columns["superglue_avg"] == row.columns["superglue_hgrn"] == 50.0
        assert row.missing["superglue_avg"] == row.missing["superglue_hgrn"] == ["multirc"]
    (row,) = summary([*given, result("a", 10, "multirc", acc=0.5, em=0.01)])
    assert row.columns["superglue_avg"] == 50.0 and row.columns["superglue_hgrn"] == pytest.approx(301 / 7)
    assert "superglue_hgrn" not in row.missing


def test_numbers_have_their_errors_and_the_rows_they_are_of():
    """A data set that was cut to 400 of its rows is seen in the table."""
    given = [
        result("a", 10, "piqa", acc=0.5, acc_stderr=0.025, n_documents=400),
        result("b", 10, "piqa", acc=0.6, acc_stderr=0.0114, n_documents=1838),
        result("b", 10, "lambada", perplexity=12.0, perplexity_stderr=0.5, n_documents=3),
    ]
    rows = summary(given)
    assert rows[0].errors == {"piqa": 2.5} and rows[0].rows == {"piqa": 400}
    heads, cells, notes = show_summary(rows)
    assert [line[heads.index("piqa")] for line in cells] == ["50.00 ± 2.50", "60.00 ± 1.14"]
    assert cells[1][heads.index("lambada_ppl")] == "12.00 ± 0.50"
    assert notes[0] == "rows evaluated: piqa 400 to 1,838, lambada 3"
    wide = [result("a", 10, task, n_documents=7, **{f: v for m in TASKS[task].metrics[:1] for f, v in
            ((m, 0.5), (f"{m}_stderr", 0.0123))}) for task in TABLE4]  # fmt: skip
    heads, cells, notes = show_summary(summary(wide))
    assert cells[0][heads.index("piqa")] == "50.00" and notes[0].startswith("standard errors: boolq 1.23, piqa 1.23")
    ours = [note for note in notes if not note.startswith("of table 4")]
    assert "rows evaluated: boolq 7" in " ".join(ours)
