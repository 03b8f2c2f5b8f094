"""How often the studies that `scaling design` proposes are right in worlds that it did not see, beside the naive
ladder of the same cost, and how close the widths are that it promises.

    python -m tests.analysis.design.goal 5.75e16 [noise between seeds [noise of the text [bend]]]
"""

import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.design.choose import summary
from analysis.design.layout import TEXT
from analysis.design.precision import precision
from analysis.design.prices import Prices
from analysis.design.proposal import Proposal
from analysis.design.simulate import Outcome, simulate
from analysis.design.study_file import Setting
from analysis.design.worlds import BEND, KINDS, Noise, Scenario, World, literature
from flops.hardware import device_of
from scaling.cli.design_study import Question, design

FRESH = {"fitted": 14, "interaction": 4, "exponents": 4, "mistuned": 4, "saturating": 4}  # 30 worlds
SEED = 20_000  # of worlds and noise that no design was made on
CAP = 250e6


@dataclass
class Goal:
    """`ratio`: simulated over promised half-widths of a, for each world; `known`: the same where the promise is the
    linearised width of the world's own surface, as a good pilot would give it."""

    seconds: float
    words: str
    promised: float
    outcomes: list[Outcome]
    ratio: np.ndarray
    known: np.ndarray

    @property
    def summary(self) -> dict[str, Any]:
        return summary(self.outcomes)


def fresh(seed: int = SEED, times: int = 1) -> list[World]:
    """30 worlds, or `times` as many of each kind."""
    rng = np.random.default_rng(seed)
    prior = literature("llama", 257)
    return [prior.draw(rng, (kind,)) for kind, number in FRESH.items() for _ in range(times * number)]


def goal(
    budget: float,
    seeds: float = 0.005,
    text: float = TEXT,
    bend: float = BEND,
    studies: int = 40,
    worlds: list[World] | None = None,
) -> dict[str, Goal]:
    """{"design", "naive"} for one architecture and `budget` FLOP."""
    began = time.process_time()
    setting = Setting("goal", ["llama"], "books.txt", 2048, True)
    asked = seeds, text, bend, setting
    question = Question("exponent", budget, False, device_of("h200"), CAP, 0.0, *asked, least_size=3e5, studies=studies)
    noise = Noise(seeds, text=text, bend=bend)
    designed = design(question, lambda what, share: None)
    seconds = time.process_time() - began
    cost = Prices(["llama"], {"vocab_size": 257, "context_length": 2048}).flops()
    judged = {}
    for name, row in (("design", designed["proposals"][0]), ("naive", designed["naive"])):
        tokens = tuple(map(tuple, row["tokens"]))
        proposal = Proposal(
            tuple(row["sizes"]),
            tokens,
            tuple(row["seeds"]),
            row["tilt"],
            row["curves"],
            sweep=tuple(row["swept_sizes"]),
            same_text=row["same_text"],
        )
        true_worlds = worlds or fresh()
        outcomes = simulate(proposal, Scenario(true_worlds, noise, cost, designed["target_flops"]), SEED)
        promised = row["summary"]["half_a"][1]
        half = np.array([outcome.half_a for outcome in outcomes])
        linear = precision(proposal.layout(), true_worlds, noise, cost, designed["target_flops"])
        judged[name] = Goal(seconds, row["words"], promised, outcomes, half / promised, half / (1.96 * linear.a))
    return judged


def show(budget: float, seeds: float = 0.005, text: float = TEXT, bend: float = BEND) -> None:
    kinds = np.repeat(list(FRESH), list(FRESH.values()))
    assert set(kinds) == set(KINDS)
    for name, result in goal(budget, seeds, text, bend).items():
        summary = result.summary
        right = np.array([abs(o.off_a) < 0.05 and abs(o.off_n) < np.log(1.3) for o in result.outcomes])
        print(f"{name}: {result.words}")
        print(
            f"  right {summary['right']:.0%} (a {summary['right_a']:.0%}, N_opt {summary['right_n']:.0%}), identified "
            f"{summary['identified']:.0%}, held {summary['held']:.0%}; by kind "
            + ", ".join(f"{kind} {right[kinds == kind].sum()}/{(kinds == kind).sum()}" for kind in KINDS)
        )
        ratios = [f"{np.nanquantile(x, (0.1, 0.5, 0.9)).round(2)}" for x in (result.ratio, result.known)]
        print(
            f"  half of a: promised {result.promised:.3f}, simulated "
            f"{np.median([outcome.half_a for outcome in result.outcomes]):.3f}, simulated over promised {ratios[0]}, "
            f"over the world's own {ratios[1]}; "
            f"design took {result.seconds:.0f} s of processor time"
        )


if __name__ == "__main__":
    show(*map(float, sys.argv[1:]))
