"""The downstream table: one line a checkpoint, averages marked where they lack a task."""

from analysis.evals.lmeval.averages import TABLE4
from analysis.evals.lmeval.sets import TASKS
from analysis.evals.lmeval.summary import show_summary, summary


def result(run_id, step, task, **values):
    return {"run_id": run_id, "step": step, "n_tokens": step * 10, "task": task, "values": values}


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
    assert [(row["run_id"], row["step"], row["n_tokens"]) for row in rows] == [("a", 20, 200), ("b", 10, 100)]
    assert rows[0]["csr_avg"] == 50.0 and rows[0]["lambada_ppl"] == 12.3456 and rows[0]["siqa"] is None
    assert rows[1]["csr_avg"] == 50.0 and set(rows[1]["missing"]["csr_avg"]) == set(TABLE4) - {"piqa", "boolq"}
    heads, cells, notes = show_summary(rows)
    assert heads[:4] == ("run", "step", "boolq", "piqa") and "scrolls_plain" not in heads
    assert cells[1][heads.index("csr_avg")] == "50.00*" and cells[0][heads.index("csr_avg")] == "50.00"
    assert cells[1][heads.index("lambada_ppl")] == "-"
    assert "* csr_avg without hellaswag, winogrande, arc-easy, arc-challenge, openbookqa" in notes
    assert [row["step"] for row in summary([*rest, *full], all_steps=True)] == [10, 20, 10]
    assert summary([]) == [] and show_summary([]) == (("run", "step"), [], [])
