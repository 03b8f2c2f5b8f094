"""The forms of the surface: plain, over-training, data-constrained.

over-training (Gadre et al. 2024, eq. 4): L = E + (a M^eta + b M^-eta) C^-eta with M = D / N. Under C = 6 N D, N is
(C / 6 M)^(1/2) and D is (C M / 6)^(1/2), so this is the plain form with alpha = beta = 2 eta, a = A 6^eta and
b = B 6^eta: four parameters. It fits where the two exponents do agree; otherwise the plain form contains it.

data-constrained (Muennighoff et al. 2023, eq. 5): a token read again teaches less. D = U (1 + R) tokens of which U
are unique count as D' = U + U R* (1 - exp(-R / R*)); R* is the number of repetitions after which more of them are worth
little. Where nothing is repeated D' = D, and this is the plain form. Their paper discounts N by the same formula; here
N counts in full.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from analysis.fits.parametric.many import Fits, fit_many
from analysis.fits.parametric.surface import Surface

PLAIN, OVER_TRAINING, DATA_CONSTRAINED = "plain", "over_training", "data_constrained"
FORMS = {
    PLAIN: "E + A / N^alpha + B / D^beta",
    OVER_TRAINING: "E + A / N^alpha + B / D^alpha, equally E + (a M^eta + b M^-eta) C^-eta with M = D / N, C = 6 N D",
    DATA_CONSTRAINED: "E + A / N^alpha + B / D'^beta, D' = U + U R* (1 - exp(-(D / U - 1) / R*)) of U unique tokens",
}
R_STAR = (0.1, 1e4)  # range of R*; one that ends here is not identified
R_GRID = np.geomspace(*R_STAR, 16)
GOLDEN = (5**0.5 - 1) / 2


def effective(amount: np.ndarray, unique: np.ndarray, r_star: Any) -> np.ndarray:
    """D' of an amount of tokens of which `unique` are new; the amount itself up to there, and for r_star = inf."""
    unique = np.minimum(unique, amount)
    repeats = amount / unique - 1
    with np.errstate(invalid="ignore"):
        worth = np.where(np.isinf(r_star), repeats, -r_star * np.expm1(-repeats / r_star))
    return np.asarray(unique * (1 + worth))


def over_training(surface: Surface) -> dict[str, Any]:
    """a, b and eta of Gadre's form for a surface with alpha = beta."""
    eta = surface.alpha / 2
    return {"a": surface.A * 6**eta, "b": surface.B * 6**eta, "eta": eta}


def fit_repeated(
    log_n: np.ndarray,
    n_tokens: np.ndarray,
    unique_tokens: np.ndarray,
    losses: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    tolerance: float = 1e-3,
    **options: Any,
) -> tuple[Fits, np.ndarray]:
    """The data-constrained form for r data sets at once, arguments as `fit_many`'s: the fits, and R* [r] (inf where
    nothing is repeated).

    For a given R* this is the plain form in D', so R* is searched by golden section around the best node of a grid, to
    `tolerance` of log R*.
    """
    if not (n_tokens > unique_tokens * (1 + 1e-9)).any():
        fits = fit_many(log_n, np.log(n_tokens), losses, weights, **options)
        return fits, np.full(len(fits.objective), np.inf)

    def at(log_r: np.ndarray) -> Fits:
        """At log R* [r]."""
        log_d = np.log(effective(n_tokens, unique_tokens, np.exp(log_r)[:, None]))
        return fit_many(log_n, log_d, losses, weights, **options)

    r = max(len(np.atleast_2d(value)) for value in (losses, np.ones(1) if weights is None else weights))
    nodes = np.log(R_GRID)
    table = np.stack([at(np.full(r, node)).objective for node in nodes])  # [k, r]
    best = table.argmin(0)
    low, high = nodes[np.maximum(best - 1, 0)], nodes[np.minimum(best + 1, len(nodes) - 1)]
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_left, at_right = at(left).objective, at(right).objective
    while (high - low).max() > tolerance:
        down = at_left < at_right  # the least lies in [low, right]
        low, high = np.where(down, low, left), np.where(down, right, high)
        fresh = np.where(down, high - GOLDEN * (high - low), low + GOLDEN * (high - low))
        value = at(fresh).objective
        left, right = np.where(down, fresh, right), np.where(down, left, fresh)
        at_left, at_right = np.where(down, value, at_right), np.where(down, at_left, value)
    log_r = (low + high) / 2
    return at(log_r), np.exp(log_r)
