"""The law of the quickstart's learning rates, of the two halves of their search: quickstart_rates.csv (8 sizes, 1.6 to
2.6 M tokens, means of two seeds) and quickstart_short.csv (2 sizes, 0.8 M tokens, one seed). Both have batch 1,024, a
constant rate, the same five rates for every architecture, and their losses held out.

    python -m tests.analysis.rates.quickstart_law [OUT.json]

writes scaling/studies/quickstart-rates.json, or OUT.json.
"""

from __future__ import annotations

import sys
from pathlib import Path

from analysis.rates.law import RatesFit, fit_rates, law_file
from data.files import write_json
from scaling.study.file import find_study
from scaling.study.rate_law import RateLaw
from scaling.study.spec import load_study
from scaling.study.sweep import recipe_of, sweep_of

from .worlds import HERE, points_of

LAW = find_study("quickstart").with_name("quickstart-rates.json")


def quickstart_fit() -> RatesFit:
    return fit_rates(points_of("quickstart_rates.csv", "quickstart_short.csv"))


def quickstart_law() -> RateLaw:
    return law_file(quickstart_fit(), recipe_of(sweep_of(load_study(HERE / "quickstart_short.yaml")), None))


if __name__ == "__main__":
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else LAW
    write_json(file, quickstart_law().model_dump(mode="json", by_alias=True), kind="results")
