"""What is known of the tasks' scores."""

import pytest

from analysis.evals.lmeval.sets import SCROLLS, TASKS
from analysis.evals.registry import ENTRIES, scales_of
from analysis.scales import Scale


@pytest.mark.parametrize("task", list(ENTRIES))
def test_every_task_but_the_held_out_loss_has_a_scale(task: str) -> None:
    assert bool(scales_of(task)) is (task != "validation")


def test_scales() -> None:
    assert scales_of("piqa") == {"acc": Scale("accuracy", chance=0.5)}
    assert scales_of("hellaswag") == {"acc_norm": Scale("accuracy", chance=0.25)}
    assert scales_of("lambada") == {
        "perplexity": Scale("perplexity", higher_is_better=False),
        "acc": Scale("accuracy"),
    }
    assert scales_of("perplexity-code") == {"word_perplexity": Scale("perplexity", higher_is_better=False)}
    assert all(scales_of(task)[TASKS[task].metrics[0]] == Scale("trend", full=100.0) for task in SCROLLS)
    assert scales_of("niah-standard-facts") == {"weighted_avg_acc": Scale("trend", full=100.0)}
    assert scales_of("record") == {"f1": Scale("trend")}
    assert scales_of("mine:own") == {} and scales_of("mine") == {}
    asked = [task for task in TASKS.values() if task.metrics[0].startswith("acc")]
    assert all(task.choices for task in asked), "an accuracy whose chance nobody wrote down"
