"""How runs were trained: what all share, each of a few values, or the ends of many."""

import pandas as pd

from analysis.report.runs import training_facts


def test_of_many_values_the_smallest_and_the_largest_are_shown():
    decays = [0.12, 0.05, 0.009, 0.3, 0.07]
    runs = pd.DataFrame(
        {"optimizer": [f"AdamW, betas [0.9, 0.{95 + i}], weight decay {d}" for i, d in enumerate(decays)]}
        | {"batch_tokens": [8_192.0, 12_288.0, 4_096.0, 24_576.0, 6_144.0], "context_length": 2_048.0}
        | {"warmup_tokens": [1.0, 2.0, 1.0, 2.0, 1.0], "precision": ["a 1", "b 2", "c 3", "d 4", "e 5"]}
        | {"hardware": None, "started": None}
    )
    facts = training_facts(runs)
    assert facts["optimizer"] == "AdamW, betas [0.9, 0.95 to 0.99], weight decay 0.009 to 0.3"
    assert (facts["batch (tokens)"], facts["context (tokens)"]) == ("4,096 to 24,576", "2,048")
    assert (facts["warm-up (tokens)"], facts["precision"]) == ("1; 2", "a 1; b 2; c 3; d 4; e 5")
