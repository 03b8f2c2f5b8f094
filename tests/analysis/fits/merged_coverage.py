"""How often intervals of fits with corrected merged losses hold the truth: what docs/research/merged-losses.md has is
printed by `python -m tests.analysis.fits.merged_coverage 200`.

A world: L = 0.7 + (N / 1.2e5)^-0.3 + (D / 2e6)^-0.3 after a decay; six sizes, some of which have branches, and merged
losses of all, by an offset that may grow with D. Trunks, branches and merged weights have noise of their own, and the
merged weights of a trunk an error in common where told.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np

from analysis.fits.offset import calibrate
from analysis.fits.parametric import fit_parametric
from analysis.fits.points import Points
from analysis.fits.solver import LEAST_SQUARES

SIZES = {"14k": 14e3, "25k": 25e3, "55k": 55e3, "98k": 98e3, "221k": 221e3, "393k": 393e3}
THREE, FOUR = ("14k", "55k", "393k"), ("14k", "55k", "98k", "393k")
TRUNK, OWN, OFFSET = 0.002, 0.001, 0.02
# sizes with branches, pairs of each, slope of the offset in ln D, scatter of merged losses about it: own, of a trunk
CASES = {
    "one offset, 3 pairs": (THREE, 1, 0.0, OWN, 0.0),
    "growing with D, 9 pairs": (THREE, 3, 0.005, OWN, 0.0),
    "growing with D, 12 pairs": (FOUR, 3, 0.005, OWN, 0.0),
    "growing with D, 12 pairs, wide scatter": (FOUR, 3, 0.005, 0.006, 0.0),
    "growing with D, 12 pairs, wide scatter of trunks": (FOUR, 3, 0.005, OWN, 0.006),
}
SHARES = (0.06, 0.12, 0.24, 0.48)  # of a size's longest tokens; branches end at these and at all of them


def truth(n, d):
    return 0.7 + (n / 1.2e5) ** -0.3 + (d / 2e6) ** -0.3


def world(rng, branched, n_pairs, slope, scatter, shared):
    """Points of decayed losses and of merged ones less their offset, as a study gives them."""
    rows, merged, pairs = [], [], []
    for size, n in SIZES.items():
        shift, longest = TRUNK * rng.standard_normal(), 3e12 / 6 / n
        common = shared * rng.standard_normal() if shared else 0.0
        for k, share in enumerate((*SHARES, 0.8)):
            d = share * longest
            off = OFFSET + slope * np.log(d / 1e6)
            loss = truth(n, d) * np.exp(shift + common + off + scatter * rng.standard_normal())
            if size in branched and share < 0.8 and k >= len(SHARES) - n_pairs:
                below = truth(n, d) * np.exp(shift + OWN * rng.standard_normal())
                rows.append((size, n, d, below))
                pair = {"size": size, "trunk": size, "n_params": n, "n_tokens": d}
                pairs.append(pair | {"offset": float(np.log(loss / below))})
            else:
                merged.append((size, n, d, loss))
        if size in branched:
            rows.append((size, n, longest, truth(n, longest) * np.exp(shift + OWN * rng.standard_normal())))
    found = calibrate(pairs)
    kept = [row for row in merged if found.reaches(row[1], row[2])]
    n, d, loss = (np.array([row[i] for row in (*rows, *kept)]) for i in (1, 2, 3))
    names = np.array([row[0] for row in (*rows, *kept)], dtype=object)
    shift = np.zeros((len(n), len(found.beta)))
    shift[len(rows) :] = found.error(n[len(rows) :], d[len(rows) :])
    loss[len(rows) :] *= np.exp(-found.offset(n[len(rows) :], d[len(rows) :]))
    run = np.array([f"{name} {i}" for i, name in enumerate(names)], dtype=object)
    return Points(
        n, d, 6 * n * d, loss, run=run, trunk=names, size=names, shift=shift, shift_df=tuple(found.df.tolist())
    )


def hold(points, seed):
    """Whether the intervals of a, and of N_opt at ten times the largest compute, hold the truth; the width of a's."""
    c = 10 * points.flops.max()
    n_opt = 1.2e5 * (c / 6 / (1.2e5 * 2e6)) ** 0.5
    fit = fit_parametric(points, objective=LEAST_SQUARES, n_replicates=300, seed=seed)
    n = fit.draws.surface.n_opt(c, fit.cost)
    low, high = fit.draws.interval(n)
    alpha, beta = fit.draws.surface.alpha, fit.draws.surface.beta
    a = fit.draws.interval(beta / (alpha + beta))
    return [a[0] <= 0.5 <= a[1], low <= n_opt <= high, a[1] - a[0]]


def main(n_worlds: int) -> None:
    for case, settings in CASES.items():
        told = {"counted": [], "not counted": []}
        for seed in range(n_worlds):
            points = world(np.random.default_rng([seed, 7]), *settings)
            told["counted"].append(hold(points, seed))
            told["not counted"].append(hold(replace(points, shift=points.shift[:, :0], shift_df=()), seed))
        for name, rows in told.items():
            a, n_opt, width = np.mean(np.array(rows, dtype=float), axis=0)
            print(
                f"{case}, the offset's error {name}: a {a:.1%}, N_opt {n_opt:.1%}, width of a {width:.4f}", flush=True
            )


if __name__ == "__main__":
    main(int(sys.argv[1]))
