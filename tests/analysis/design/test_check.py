"""What `scaling plan` says of studies that were designed by hand."""

import math
import re
from dataclasses import replace

import numpy as np

from analysis.design.check import WIDE_A, Run, expect
from analysis.design.worlds import TEXT, Noise, literature

NOISE = Noise()
SIZES = [0.4e6, 0.8e6, 3.1e6, 6.3e6, 14.2e6, 31.5e6]


def ladder(tokens: float, seeds: int = 1) -> list[Run]:
    return [
        Run(f"x{i}", n, tokens, 6 * n, f"x{i}-s{seed}", False) for i, n in enumerate(SIZES) for seed in range(seeds)
    ]


def test_a_study_that_is_too_small_gets_a_remedy_that_works():
    """Of four sizes; six of them do, with the seeds that are named."""
    expected = expect([run for run in ladder(80e6) if run.size not in ("x0", "x5")], 257, NOISE)
    assert 0.1 < expected.half_a < 0.5
    whole = expect(ladder(80e6), 257, NOISE)
    seeds = math.ceil((whole.half_a / WIDE_A) ** 2)
    assert WIDE_A < whole.half_a < expected.half_a / 1.5 and f"every size needs {seeds} times its seeds" in whole.remedy
    several = expect(ladder(80e6, seeds), 257, NOISE)
    assert several.half_a <= WIDE_A and not several.remedy
    times, size = re.search(r"(x\d) needs ([\d.]+) times its tokens", whole.remedy).group(2, 1)
    assert expect(ladder(80e6), 257, Noise(text=TEXT)).half_a > whole.half_a
    longer = [replace(run, n_tokens=80e6 * float(times) * 1.01) if run.size == size else run for run in ladder(80e6)]
    assert not expect(longer, 257, NOISE).remedy


def test_of_few_parameters_no_floor_of_the_loss_is_assumed():
    tiny, other = literature(257, 2e4), literature(257, 2e6)
    worlds = [tiny.draw(np.random.default_rng(i)) for i in range(50)]
    assert all(world.e == 0 for world in worlds) and "no floor" in tiny.source
    assert 1.9 < np.median([float(world.loss(2e4, 1e6)) for world in worlds]) < 2.3
    assert all(other.draw(np.random.default_rng(i)).e > 0.5 for i in range(50))


def test_runs_that_allow_no_fit_are_reported_and_branches_count_alone():
    two = expect([run for run in ladder(80e6) if run.n_params > 1e7], 257, NOISE)
    assert two.half_a == math.inf and "three sizes" in two.remedy
    branches = [
        Run(f"x{i}", n, n * times, 6 * n, f"x{i}-s{seed}", True)
        for i, n in enumerate(np.geomspace(3e5, 2e7, 8))
        for seed in range(3)
        for times in (5, 10, 20, 40, 80)
    ]
    assert expect(branches, 257, NOISE).half_a < WIDE_A
    assert expect([*branches, *ladder(1e6)], 257, NOISE) == expect(branches, 257, NOISE)
