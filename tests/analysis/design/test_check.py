"""What `scaling plan` says of studies that were designed by hand."""

import dataclasses
import math
import re

import numpy as np

from analysis.design.check import Run, expect

SIZES = [0.4e6, 0.8e6, 3.1e6, 6.3e6, 14.2e6, 31.5e6]


def ladder(tokens: float, seeds: int = 1) -> list[Run]:
    return [
        Run(f"x{i}", n, tokens, 6 * n, f"x{i}-s{seed}", False) for i, n in enumerate(SIZES) for seed in range(seeds)
    ]


def test_the_trial_study_is_told_and_what_is_advised_would_do():
    found = expect("llama", ladder(80e6), 257)
    assert found.too_wide and 0.08 < found.half_a < 0.12
    size, times = re.match(r"(x\d) needs ([\d.]+) times its tokens", found.remedy).groups()
    more = [
        dataclasses.replace(r, n_tokens=r.n_tokens * (float(times) + 0.1)) if r.size == size else r
        for r in ladder(80e6)
    ]
    assert not expect("llama", more, 257).too_wide
    seeds = int(re.search(r"needs (\d+) times its seeds", found.remedy)[1])
    enough = expect("llama", ladder(80e6, seeds), 257)
    assert not enough.too_wide and np.isclose(enough.half_a * math.sqrt(seeds), found.half_a, rtol=1e-3)


def test_what_allows_no_fit_is_told_and_branches_count_alone():
    two = expect("llama", [one for one in ladder(80e6) if one.n_params > 1e7], 257)
    assert two.half_a == math.inf and "three sizes" in two.remedy
    branches = [
        Run(f"x{i}", n, n * times, 6 * n, f"x{i}-s{seed}", True)
        for i, n in enumerate(np.geomspace(3e5, 2e7, 8))
        for seed in range(3)
        for times in (5, 10, 20, 40, 80)
    ]
    assert not expect("llama", branches, 257).too_wide
    assert expect("llama", [*branches, *ladder(1e6)], 257) == expect("llama", branches, 257)
