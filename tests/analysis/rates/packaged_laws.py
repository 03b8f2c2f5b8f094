"""The laws of learning rates of the quickstart and of the first grid of books, and the sweeps of the second study.

quickstart-rates.json is of the two halves of the quickstart's search: quickstart_rates.csv (8 sizes, 1.6 to 2.6 M
tokens, means of two seeds) and quickstart_short.csv (2 sizes, 0.8 M tokens, one seed). Both have batch 1,024, a
constant rate, the same five rates for every architecture, and their losses held out.

docs/research/books.yaml follows the second study's sweep with the cell where LLaMA's law was tested and without
LLaMA's cells of 280k, LLaMA with the cell of its test on books too (books-law.json), and LLaMA below 1.1M parameters
the sweep itself (books-law-small-llama.json).

    python -m tests.analysis.rates.packaged_laws

writes them where they lie.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from analysis.rates.cell import RatePoint
from analysis.rates.law import RatesFit, fit_rates, law_file
from data.files import write_json
from scaling.study.file import find_study
from scaling.study.rate_law import RateLaw
from scaling.study.spec import load_study
from scaling.study.sweep import recipe_of, sweep_of

from .worlds import HERE, points_in, points_of

RESEARCH = Path(__file__).parents[3] / "docs" / "research"
QUICKSTART = find_study("quickstart").with_name("quickstart-rates.json")
BOOKS = RESEARCH / "books-law.json"
SMALL_LLAMA = RESEARCH / "books-law-small-llama.json"


def quickstart_fit() -> RatesFit:
    return fit_rates(points_of("quickstart_rates.csv", "quickstart_short.csv"))


def second_points() -> list[RatePoint]:
    first = pd.read_csv(RESEARCH / "second-study-rates.csv")
    second = pd.read_csv(RESEARCH / "second-study-sweep.csv").rename(columns={"held_out_loss": "loss"})
    return points_in(pd.concat([first, second]))


def second_fit() -> RatesFit:
    return fit_rates(second_points(), without=["batch_tokens"], share=True)


def law_of_the_grid() -> RatesFit:
    return fit_rates(points_in(_losses("law")), without=["batch_tokens"], share=True)


def law_of_llama() -> RatesFit:
    """The law refitted with the cell where it was tested, without LLaMA's cells of 280k."""
    return fit_rates(points_in(_with_test()), without=["batch_tokens"], share=True)


def law_of_llama_on_books() -> RatesFit:
    """The same with LLaMA's cell of the test on books, where its law lost more than 0.3%."""
    tested = _losses_of("books-rates")
    points = points_in(pd.concat([_with_test(), tested[tested.arch == "llama"]]))
    return fit_rates(points, without=["batch_tokens"], share=True)


def _with_test() -> pd.DataFrame:
    swept = _losses("law")
    return pd.concat([swept[(swept.arch != "llama") | (swept["size"] != "n280k")], _losses("llama")])


def _losses(table: str) -> pd.DataFrame:
    return _losses_of(f"second-study-{table}")


def _losses_of(table: str) -> pd.DataFrame:
    return pd.read_csv(RESEARCH / f"{table}.csv").rename(columns={"held_out_loss": "loss"})


def quickstart_law() -> RateLaw:
    return law_file(quickstart_fit(), recipe_of(sweep_of(load_study(HERE / "quickstart_short.yaml")), None))


def books_laws() -> dict[Path, RateLaw]:
    recipe = recipe_of(sweep_of(load_study(RESEARCH / "second-study.yaml")), None)
    whole = law_file(law_of_the_grid(), recipe)
    of_llama = {name: {"llama": getattr(whole, name)["llama"]} for name in ("laws", "noise")}
    cells = [cell for cell in whole.cells if cell["arch"] == "llama"]
    small = whole.model_copy(update=of_llama | {"cells": cells})
    return {
        BOOKS: _but_llama(law_file(law_of_llama(), recipe), law_file(law_of_llama_on_books(), recipe)),
        SMALL_LLAMA: small,
    }


def _but_llama(swept: RateLaw, refitted: RateLaw) -> RateLaw:
    """`swept` with the law, noise and cells of LLaMA of `refitted`."""
    of_llama = {name: getattr(swept, name) | {"llama": getattr(refitted, name)["llama"]} for name in ("laws", "noise")}
    cells = [cell for law in (swept, refitted) for cell in law.cells if (cell["arch"] == "llama") == (law is refitted)]
    return swept.model_copy(update=of_llama | {"cells": cells, "inputs_sha256": refitted.inputs_sha256})


if __name__ == "__main__":
    for path, law in {QUICKSTART: quickstart_law(), **books_laws()}.items():
        write_json(path, law.model_dump(mode="json", by_alias=True), kind="results")
