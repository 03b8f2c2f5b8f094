"""How often the studies that `scaling design` proposes are right in worlds that it did not see, beside the naive ladder
of the same cost; docs/research/designs.md has the figures.

    python -m tests.analysis.design.test_goal 5.75e16 [noise between seeds]
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from analysis.design.choose import simulate, summary
from analysis.design.prices import Prices
from analysis.design.proposal import Proposal
from analysis.design.study_file import Setting
from analysis.design.worlds import BEND, Noise, Scenario, World, literature
from flops.hardware import device_of
from scaling.cli.design_study import Question, design

FRESH = {"fitted": 14, "interaction": 4, "exponents": 4, "mistuned": 4, "saturating": 4}  # 30 worlds
SEED = 20_000  # of worlds and noise that no design was made on


def fresh(seed: int = SEED, times: int = 1) -> list[World]:
    """30 worlds, or `times` as many of each kind."""
    rng, prior = np.random.default_rng(seed), literature(257)
    return [prior.draw(rng, (kind,)) for kind, number in FRESH.items() for _ in range(times * number)]


def goal(
    budget: float, seeds: float = 0.005, bend: float = BEND, worlds: list[World] | None = None
) -> dict[str, dict[str, Any]]:
    """Of the design and of the naive ladder for one architecture and `budget` FLOP: its words, the half-width of a that
    it promises, and the summary of its studies in these worlds."""
    asked = seeds, Setting("goal", ["llama"], "books.txt", 2048, True, held_out=True)
    question = Question("exponent", budget, False, device_of("h200"), 250e6, 0.0, *asked, least_size=3e5, bend=bend)
    designed = design(question, lambda what, share: None)
    cost = Prices(["llama"], {"vocab_size": 257, "context_length": 2048}).flops()
    scenario = Scenario(worlds or fresh(), Noise(seeds, bend), cost, designed["target_flops"])
    judged = {}
    for name, row in (("design", designed["proposals"][0]), ("naive", designed["naive"])):
        shape = (tuple(row[key]) for key in ("sizes", "tokens", "seeds"))
        proposal = Proposal(*shape, row["tilt"], tuple(row["swept_sizes"]), row["same_text"])
        outcomes = simulate(proposal, scenario, SEED)
        judged[name] = {"words": row["words"], "promised": row["summary"]["half_a"][1]} | summary(outcomes)
    return judged


@pytest.mark.slow
def test_designs_are_right_more_often_than_the_naive_ladder():
    """In 240 worlds: 30 tell a share to 7 points."""
    results = goal(5.75e16, bend=0.0, worlds=fresh(111_000, 8))  # noise between seeds alone
    design, naive = results["design"], results["naive"]
    assert design["studies"] == 8 * sum(FRESH.values()) == 240
    assert design["right"] >= max(0.85, naive["right"] + 0.25)
    assert design["half_a"][1] / design["promised"] == pytest.approx(1, abs=0.25)


if __name__ == "__main__":
    for name, row in goal(*map(float, sys.argv[1:])).items():
        print(name, row)
