"""What `scaling plan` says of studies that were designed by hand."""

import math
import re

import numpy as np

from analysis.design.check import Reading, Run, expect
from analysis.design.layout import TEXT
from analysis.design.worlds import SEED_NOISE, Noise, literature

READ = Reading(Noise(SEED_NOISE, text=TEXT), 3e5, 0.1)
SIZES = [0.4e6, 0.8e6, 3.1e6, 6.3e6, 14.2e6, 31.5e6]


def ladder(tokens: float, seeds: int = 1) -> list[Run]:
    return [
        Run(f"x{i}", n, tokens, 6 * n, f"x{i}-s{seed}", False) for i, n in enumerate(SIZES) for seed in range(seeds)
    ]


def test_the_trial_study_gets_a_remedy_that_works():
    runs = [run for run in ladder(80e6) if run.size not in ("x0", "x5")]
    expected = expect("llama", runs, 257, READ)
    assert expected.too_wide and 0.1 < expected.half_a < 0.5
    seeds = re.search(r"needs (\d+) times its seeds", expected.remedy)
    assert seeds is None or int(seeds[1]) == math.ceil((expected.half_a / expected.limit) ** 2)
    whole, quiet = expect("llama", ladder(80e6), 257, READ), expect("llama", ladder(80e6), 257, Reading(Noise(0.002)))
    assert quiet.half_a < whole.half_a / 2 < expected.half_a / 2 and not quiet.too_wide and not quiet.remedy


def test_of_few_parameters_no_floor_of_the_loss_is_assumed():
    tiny, other = literature("llama", 257, 2e4), literature("llama", 257, 2e6)
    worlds = [tiny.draw(np.random.default_rng(i)) for i in range(50)]
    assert all(world.e == 0 for world in worlds) and "no floor" in tiny.source
    assert 1.9 < np.median([float(world.loss(2e4, 1e6)) for world in worlds]) < 2.3
    assert all(other.draw(np.random.default_rng(i)).e > 0.5 for i in range(50))


def test_runs_that_allow_no_fit_are_reported_and_branches_count_alone():
    two = expect("llama", [run for run in ladder(80e6) if run.n_params > 1e7], 257, READ)
    assert two.half_a == math.inf and "three sizes" in two.remedy
    branches = [
        Run(f"x{i}", n, n * times, 6 * n, f"x{i}-s{seed}", True)
        for i, n in enumerate(np.geomspace(3e5, 2e7, 8))
        for seed in range(3)
        for times in (5, 10, 20, 40, 80)
    ]
    assert not expect("llama", branches, 257, READ).too_wide
    assert expect("llama", [*branches, *ladder(1e6)], 257, READ) == expect("llama", branches, 257, READ)
