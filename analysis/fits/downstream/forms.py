"""The forms that link a score to an abscissa z which rises as models get better (-L, -ln L, ln C).

eta = a + b (z - z0) is linear, b > 0 where the score gets better, and the form takes eta to what is fitted:
- exponential, of accuracies: share above chance = exp(eta), so err = eps - k exp(-gamma L) with eps = 1 - chance
  (Gadre et al. 2024);
- logistic, of accuracies: share above chance = 1 / (1 + exp(-eta)), so acc = a / (1 + exp(-k (L0 - L))) + b with
  b = chance (Bhagia et al. 2024, who take the loss on the task's own answers for L);
- power, of perplexities: ln P = exp(-eta), a power law of L: the loss on one text against that on another
  (Brandfonbrener et al. 2024, without their shifts). It is exact where the text is the corpus (k = 1), or is counted in
  words (k tokens a word).
Accuracies may have a free floor (1 - eps, b) instead of chance, and the logistic a free ceiling (a + b) instead of 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from analysis.scales import ACCURACY, PERPLEXITY
from arch.errors import InputError

LOGISTIC, EXPONENTIAL, POWER = "logistic", "exponential", "power"
FORMS = {ACCURACY: (LOGISTIC, EXPONENTIAL), PERPLEXITY: (POWER,)}  # the first one is what a study's laws are
FREE = ("floor", "ceiling")
MOST = 60.0  # |eta|, beyond which exp is 0 or no use


@dataclass(frozen=True)
class Form:
    """theta: [a, b, then those of `free`, in the order of FREE]. Floor and ceiling are of the share above chance."""

    name: str
    free: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        allowed = {LOGISTIC: FREE, EXPONENTIAL: ("floor",)}.get(self.name, ())
        if self.free != tuple(one for one in allowed if one in self.free):
            raise InputError(
                f"{self.name}: {', '.join(self.free)} cannot be free; {', '.join(allowed) or 'nothing'} can"
            )

    def eta(self, theta: np.ndarray, z: np.ndarray) -> np.ndarray:
        return np.asarray(np.clip(theta[0] + theta[1] * z, -MOST, MOST))

    def ends(self, theta: np.ndarray) -> tuple[float, float]:
        """Floor and ceiling."""
        found = dict(zip(self.free, theta[2:], strict=True))
        return float(found.get("floor", 0.0)), float(found.get("ceiling", 1.0))

    def shape(self, eta: np.ndarray) -> np.ndarray:
        """Between floor 0 and ceiling 1."""
        if self.name == LOGISTIC:
            return np.asarray(expit(eta))
        return np.exp(-eta if self.name == POWER else eta)

    def slope(self, eta: np.ndarray) -> np.ndarray:
        """d shape / d eta."""
        found = self.shape(eta)
        return found * (1 - found) if self.name == LOGISTIC else -found if self.name == POWER else found

    def inverse(self, shape: np.ndarray) -> np.ndarray:
        inside = np.clip(shape, 1e-12, 1 - 1e-12) if self.name == LOGISTIC else np.maximum(shape, 1e-12)
        log = np.log(inside)
        return log - np.log1p(-inside) if self.name == LOGISTIC else -log if self.name == POWER else log

    def value(self, theta: np.ndarray, z: np.ndarray) -> np.ndarray:
        low, high = self.ends(theta)
        return low + (high - low) * self.shape(self.eta(theta, z))

    def jacobian(self, theta: np.ndarray, z: np.ndarray) -> np.ndarray:
        """[n, p]: d value / d theta."""
        low, high = self.ends(theta)
        eta = self.eta(theta, z)
        rise = (high - low) * self.slope(eta)
        found = {"floor": 1 - self.shape(eta), "ceiling": self.shape(eta)}
        return np.stack([rise, rise * z, *(found[name] for name in self.free)], axis=1)
