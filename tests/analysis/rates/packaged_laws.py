"""The laws of learning rates that come with the package.

quickstart-rates.json is of the two halves of the quickstart's search: quickstart_rates.csv (8 sizes, 1.6 to 2.6 M
tokens, means of two seeds) and quickstart_short.csv (2 sizes, 0.8 M tokens, one seed). Both have batch 1,024, a
constant rate, the same five rates for every architecture, and their losses held out. second-study-rates.json is of the
two sweeps of docs/research/second-study.md, a seed each: training losses of the first, held-out ones of the second.

    python -m tests.analysis.rates.packaged_laws

writes both in scaling/studies.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from analysis.rates.cell import RatePoint
from analysis.rates.law import RatesFit, fit_rates, law_file
from data.files import write_json
from scaling.study.file import find_study
from scaling.study.rate_law import RateLaw
from scaling.study.rates import read_law
from scaling.study.spec import load_study
from scaling.study.sweep import recipe_of, sweep_of

from .worlds import HERE, points_in, points_of

RESEARCH = Path(__file__).parents[3] / "docs" / "research"
QUICKSTART, SECOND = (find_study(name).with_name(f"{name}-rates.json") for name in ("quickstart", "second-study"))


def quickstart_fit() -> RatesFit:
    return fit_rates(points_of("quickstart_rates.csv", "quickstart_short.csv"))


def second_points() -> list[RatePoint]:
    first = pd.read_csv(RESEARCH / "second-study-rates.csv")
    second = pd.read_csv(RESEARCH / "second-study-sweep.csv").rename(columns={"held_out_loss": "loss"})
    return points_in(pd.concat([first, second]))


def second_fit() -> RatesFit:
    return fit_rates(second_points(), without=["batch_tokens"], share=True)


def packaged_laws() -> dict[Path, RateLaw]:
    """By file. The second study's recipe is that of its runs, which the file has."""
    quickstart = recipe_of(sweep_of(load_study(HERE / "quickstart_short.yaml")), None)
    loss = "the loss at the end of each run: of the last training batches in one sweep, held out in the other"
    second = read_law(SECOND).law.recipe.model_copy(update={"loss": loss})
    return {QUICKSTART: law_file(quickstart_fit(), quickstart), SECOND: law_file(second_fit(), second)}


if __name__ == "__main__":
    for path, law in packaged_laws().items():
        write_json(path, law.model_dump(mode="json", by_alias=True), kind="results")
