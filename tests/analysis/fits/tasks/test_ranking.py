"""Which rankings are withheld, decision accuracy, and the error rates of the threshold (slow)."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from analysis.fits.task_fits import Score
from analysis.fits.tasks.ranking import SeedNoise, Tail, between_seeds, rank_size, rankings_of, tail_of
from analysis.scales import Scale

TOKENS, SHARE = np.geomspace(0.5, 1.0, 5), Scale("accuracy")


def tails(random: np.random.Generator, n: int, between: float, apart: float = 0.0, seeds: int = 1) -> list[Tail]:
    return [
        Tail(str(i), "s", TOKENS, apart * i + 0.05 * np.log(TOKENS) + between * random.normal() + random.normal(size=5))
        for i in range(n)
        for _ in range(seeds)
    ]


def test_a_clear_ranking_is_shown_and_noise_is_not() -> None:
    random = np.random.default_rng(4)
    clear = rank_size("s", tails(random, 4, 0.0, apart=5))
    assert clear.reason == "" and sorted(clear.means, key=clear.means.__getitem__) == ["0", "1", "2", "3"]
    assert clear.needed == pytest.approx(stats.studentized_range.ppf(0.95, 4, 12) * np.sqrt(1.2))
    assert rank_size("s", tails(random, 4, 0.0)).reason.startswith("signal to noise is ")
    assert "one architecture alone" in rank_size("s", tails(random, 1, 0.0)).reason
    short = [replace(tail, tokens=tail.tokens[:3], value=tail.value[:3]) for tail in tails(random, 2, 0.0)]
    assert "no run has 4 evaluated checkpoints" in rank_size("s", short).reason
    by_seeds = rank_size("s", short, SeedNoise(0.25, 4))
    assert by_seeds.needed == pytest.approx(stats.studentized_range.ppf(0.95, 2, 4))
    means = by_seeds.means
    assert by_seeds.ratio == pytest.approx(abs(means["0"] - means["1"]) / 0.5)
    still = [replace(tail, value=np.zeros(5)) for tail in tails(random, 2, 0.0)]
    assert "scores do not change" in rank_size("s", still).reason


def test_seeds_say_what_runs_differ_by() -> None:
    random = np.random.default_rng(4)
    seeded = tails(random, 3, 4.0, seeds=3)
    between = between_seeds(seeded)
    assert between is not None and between.df == 6
    variance = sum(np.var([tail.value.mean() for tail in seeded[i : i + 3]]) * 3 for i in (0, 3, 6)) / 6
    assert between.variance == pytest.approx(variance) and variance > 4
    assert (rank_size("s", seeded, between).needed or 0) > (rank_size("s", seeded).needed or 9)
    assert between_seeds(tails(random, 3, 1.0)) is None


def score(arch: str, size: str, n_tokens: int, value: float) -> Score:
    return Score(f"{arch}-{size}", size, n_tokens, 2.0, float(size) * n_tokens, value, None)


def test_the_last_half_of_a_run_counts() -> None:
    run = [score("a", "1", n, float(n)) for n in (4, 1, 2, 3, 6, 5)]
    assert tail_of("a", run, SHARE).value.tolist() == [3, 4, 5, 6]
    logs = tail_of("a", run, Scale("perplexity", higher_is_better=False)).value
    np.testing.assert_allclose(logs, np.log([3, 4, 5, 6]))


def test_small_sizes_are_compared_with_the_largest() -> None:
    small, large = {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.0}, {"a": 0.1, "b": 0.3, "c": 0.2}
    tied = {"a": 0.1, "b": 0.1}
    sizes = {"1": tied, "2": large, "3": large, "9": {"a": 0.5}}
    scores = {arch: [score(arch, size, 5, of[arch]) for size, of in sizes.items() if arch in of] for arch in "abc"}
    by_size = {ranking.size: ranking for ranking in rankings_of(scores, SHARE)}
    assert list(by_size) == ["1", "2", "3", "9"]  # the smallest compute first
    assert (by_size["1"].same_pairs, by_size["1"].n_pairs) == (0.5, 1)
    assert (by_size["2"].same_pairs, by_size["2"].n_pairs) == (1.0, 3)
    assert by_size["3"].same_pairs is None and by_size["9"].same_pairs is None
    sizes = {"1": {name: value for name, value in small.items() if name != "d"}, "2": large}
    scores = {arch: [score(arch, size, 5, of[arch]) for size, of in sizes.items()] for arch in "abc"}
    assert rankings_of(scores, SHARE)[0].same_pairs == pytest.approx(2 / 3)
    assert rankings_of({}, SHARE) == ()


@pytest.mark.slow
def test_error_rates_of_the_threshold() -> None:
    """docs/research/task-links.md has the figures."""
    random, n = np.random.default_rng(6), 2_000
    for count in (2, 4, 7):
        rates = {}
        for between in (0.0, 1.0, 2.0):
            shown = [rank_size("s", tails(random, count, between)).reason == "" for _ in range(n)]
            rates[f"noise between runs {between:g}"] = float(np.mean(shown))
            more = [tails(random, count, between, seeds=3) for _ in range(500)]
            seeded = [rank_size("s", drawn, between_seeds(drawn)).reason == "" for drawn in more]
            rates[f"with three seeds {between:g}"] = float(np.mean(seeded))
        print(f"{count} architectures, none better: ranking shown {rates}")
        assert rates["noise between runs 1"] < 0.08 and max(rates[f"with three seeds {b}"] for b in (0, 1, 2)) < 0.08
