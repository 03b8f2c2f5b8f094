"""The forms of the surface, as the solver sees them: unknowns, the fitted loss with its derivatives, and starts.

plain: E + A / N^alpha + B / D^beta.

over-training (Gadre et al. 2024, eq. 4): E + (a M^eta + b M^-eta) C^-eta with M = D / N. Under C = 6 N D, N is
(C / 6 M)^(1/2) and D is (C M / 6)^(1/2), so this is the plain form with alpha = beta = 2 eta, a = A 6^eta and
b = B 6^eta: four parameters. It fits where the two exponents do agree.

data-constrained (Muennighoff et al. 2023): a token that is read again counts for less, by R_D. Without repeats it is
the plain form.

The unknowns are E, log A, log B, alpha, beta and what a form adds: log A as in Hoffmann et al.'s logsumexp, but E
itself, since log E runs away to minus infinity where E = 0 is best. log N and log D are centred and the loss divided by
its mean, so the units do not matter.

A new form has a name in FORMS, its unknowns, slopes and starts in `Form`, its loss and optimum in `Surface`
(surface.py), and what it adds to a result in MORE, RANGES and MISSING (parametric.py) and in the details
(scaling/cli/fit_details.py). The solver takes the loss as linear in E, A and B: an exponent about the whole needs
more there (solver.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.fits.surface import PARAMS, Surface, worth

PLAIN, OVER_TRAINING, DATA_CONSTRAINED = "plain", "over_training", "data_constrained"
FORMS = {
    PLAIN: "E + A / N^alpha + B / D^beta",
    OVER_TRAINING: "E + A / N^alpha + B / D^alpha, equally E + (a M^eta + b M^-eta) C^-eta with M = D / N, C = 6 N D",
    DATA_CONSTRAINED: "E + A / N^alpha + B / D'^beta, D' = U + U R* (1 - exp(-(D / U - 1) / R*)) of U unique tokens",
}
BOUNDS = (0.005, 3.0)  # of an exponent; one that ends here is not identified
R_STAR = (0.1, 1e4)  # of R_D; likewise
FLOOR = -25.0  # of log A and log B at the centre, over the loss: as good as zero
PRESENT = 1e-2  # of the mean loss: where a term that least squares set to zero starts, since log 0 goes nowhere
NODES = np.log(np.geomspace(1, 100, 4))  # of log R_D at which searches start
STEP = 1e-6  # of an unknown, for second derivatives by differences
E, A, B, ALPHA, BETA, R_D = range(6)  # unknowns


@dataclass(frozen=True)
class Data:
    """r data sets of n points, [r or 1, n] each: log N and log D less their means, the loss over its mean, weights of
    which every row sums to 1; unique: log of the unique tokens less the mean of log D (None: every token is new);
    e: [r] where E is given. centre_n, centre_d, unit, total: what undoes that, [r or 1] each."""

    x: np.ndarray
    y: np.ndarray
    loss: np.ndarray
    weights: np.ndarray
    unique: Any = None
    e: np.ndarray | None = None
    centre_n: Any = 0.0
    centre_d: Any = 0.0
    unit: Any = 1.0
    total: Any = 1.0

    def take(self, rows: np.ndarray) -> Data:
        """Data sets by index or mask; an array that all share stays as it is."""
        arrays = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray) and len(value) > 1}
        return replace(self, **{name: value[rows] for name, value in arrays.items()})


class Form:
    """A form of the surface. low, high: the range [k] of each unknown."""

    def __init__(self, name: str = PLAIN) -> None:
        self.name = name
        self.tied, self.repeated = name == OVER_TRAINING, name == DATA_CONSTRAINED
        ends = np.log(R_STAR)
        kept = [E, A, B, ALPHA, *([] if self.tied else [BETA]), *([R_D] if self.repeated else [])]
        self.low = np.array([0.0, FLOOR, FLOOR, BOUNDS[0], BOUNDS[0], ends[0]])[kept]
        self.high = np.array([np.inf, np.inf, np.inf, BOUNDS[1], BOUNDS[1], ends[1]])[kept]

    @property
    def k(self) -> int:
        return len(self.low)

    def loss(self, theta: np.ndarray, data: Data) -> np.ndarray:
        """[r, n]."""
        p, q = self.terms(theta, data)
        return np.asarray(theta[:, :1] + p + q)

    def terms(self, theta: np.ndarray, data: Data) -> tuple[np.ndarray, np.ndarray]:
        """The terms of N and of D [r, n]."""
        return self._terms(theta, data, self._log_tokens(theta, data))

    def slopes(self, theta: np.ndarray, data: Data) -> tuple[np.ndarray, np.ndarray]:
        """The loss [r, n], and the derivatives of its logarithm over the unknowns [r, k, n]."""
        log_d = self._log_tokens(theta, data)
        p, q = self._terms(theta, data, log_d)
        loss = theta[:, :1] + p + q
        slopes = np.empty((len(theta), 5, loss.shape[1]))
        with np.errstate(invalid="ignore", divide="ignore"):
            np.divide(1.0, loss, out=slopes[:, E])
            np.divide(p, loss, out=slopes[:, A])
            np.divide(q, loss, out=slopes[:, B])
        p, q = slopes[:, A], slopes[:, B]
        np.multiply(p, -data.x, out=slopes[:, ALPHA])
        np.multiply(q, -log_d, out=slopes[:, BETA])
        if self.tied:
            slopes[:, ALPHA] += slopes[:, BETA]
            return loss, slopes[:, :BETA]
        if self.repeated:  # d log L over log D', times d log D' over log R_D
            of_r = -theta[:, BETA, None] * q * self._repeats(theta[:, R_D, None], data)[1]
            slopes = np.concatenate([slopes, of_r[:, None]], 1)
        return loss, slopes

    def bend(self, theta: np.ndarray, data: Data, loss: np.ndarray, slopes: np.ndarray, w: np.ndarray) -> np.ndarray:
        """[r, k, k]: second derivatives of the loss over the unknowns, over the loss, times w [r, n], summed."""
        if not self.repeated:
            return self._plain_bend(theta, data, slopes, w)
        over, bend = w / loss, np.empty((len(theta), self.k, self.k))
        first = loss[:, None] * slopes
        for j in range(self.k):
            moved = theta.copy()
            moved[:, j] += STEP
            there, again = self.slopes(moved, data)
            bend[:, j] = (((there[:, None] * again - first) / STEP) @ over[:, :, None])[..., 0]
        return (bend + np.swapaxes(bend, 1, 2)) / 2

    def starts(
        self,
        data: Data,
        solve: Callable[[Form, Data], tuple[np.ndarray, np.ndarray]],
        every: bool,
        near: Surface | None,
    ) -> np.ndarray:
        """theta [s r, k] of the form with R_D, for the r data sets again and again: least squares of the plain form
        (`solve`) at each node of R_D (or at that of `near`), of which the best is kept, or all with `every`."""
        r, nodes = len(data.loss), NODES if near is None else np.log([min(near.r_d, R_STAR[1])])
        log_r = np.repeat(nodes, r)[:, None]
        part = data.take(np.tile(np.arange(r), len(nodes)))
        theta, value = solve(Form(), replace(part, y=part.unique + self._repeats(log_r, part)[0], unique=None))
        theta = np.concatenate([present(theta), log_r], 1)
        return theta if every else theta[value.reshape(-1, r).argmin(0) * r + np.arange(r)]

    def surface(self, theta: np.ndarray, data: Data) -> tuple[Surface, np.ndarray]:
        """In the units of the points; and which of alpha, beta and R_D ended at the end of their range, or have no
        term, or no weighted row that tells of them [r, 3]."""
        full = np.insert(theta, BETA, theta[:, ALPHA], 1) if self.tied else theta
        terms = np.where(full[:, A:ALPHA] > FLOOR, np.exp(full[:, A:ALPHA]), 0.0)
        alpha, beta = full[:, ALPHA], full[:, BETA]
        a, b = terms[:, 0] * np.exp(alpha * data.centre_n), terms[:, 1] * np.exp(beta * data.centre_d)
        at_bound = np.zeros((len(full), 3), dtype=bool)
        exponents = full[:, ALPHA : BETA + 1]
        at_bound[:, :2] = (exponents <= BOUNDS[0] * (1 + 1e-9)) | (exponents >= BOUNDS[1] * (1 - 1e-9)) | (terms <= 0)
        r_d = None
        if data.unique is not None:
            log_r, repeats = full[:, R_D], (data.weights > 0) & (data.y > data.unique + 1e-9)
            decided = np.broadcast_to(repeats.any(-1), len(full))
            r_d = np.where(decided, np.exp(log_r), np.inf)
            at_bound[:, 2] = (log_r <= self.low[-1] + 1e-9) | (log_r >= self.high[-1] - 1e-9) | ~decided
        return Surface(full[:, E] * data.unit, a * data.unit, b * data.unit, alpha, beta, r_d), at_bound

    def theta(self, surface: Surface, data: Data) -> np.ndarray:
        """[r, k]: the unknowns of one surface, for each of r data sets."""
        with np.errstate(divide="ignore"):
            log_a, log_b = (np.maximum(np.log(value / data.unit), -1e3) for value in (surface.A, surface.B))
        values = [surface.E / data.unit, log_a - surface.alpha * data.centre_n, log_b - surface.beta * data.centre_d]
        values += [surface.alpha, *([] if self.tied else [surface.beta])]
        values += [np.log(np.clip(surface.r_d, *R_STAR))] if self.repeated else []
        return np.stack(np.broadcast_arrays(*values), -1)

    def is_free(self, surface: Surface, at_bound: np.ndarray) -> np.ndarray:
        """[k] bool: the unknowns of one surface that its points decide. E = 0, a term that is not there, and what
        ended at the end of its range are none."""
        has = [surface.E > 0, surface.A > 0, surface.B > 0]
        inside = has[1:] & ~at_bound[:2]
        exponents = [inside.all()] if self.tied else inside
        return np.array([*has, *exponents, *([not at_bound[2]] if self.repeated else [])], dtype=bool)

    def _terms(self, theta: np.ndarray, data: Data, log_d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        alpha, beta = theta[:, ALPHA, None], theta[:, ALPHA if self.tied else BETA, None]
        return np.exp(theta[:, A, None] - alpha * data.x), np.exp(theta[:, B, None] - beta * log_d)

    def _log_tokens(self, theta: np.ndarray, data: Data) -> np.ndarray:
        """log D' [r or 1, n]."""
        return data.unique + self._repeats(theta[:, R_D, None], data)[0] if self.repeated else data.y

    def _repeats(self, log_r: np.ndarray, data: Data) -> tuple[np.ndarray, np.ndarray]:
        """log D' / U at log R_D [r, 1], and its derivative over log R_D."""
        return worth(np.exp(data.y - data.unique), log_r)

    def _plain_bend(self, theta: np.ndarray, data: Data, slopes: np.ndarray, w: np.ndarray) -> np.ndarray:
        bend = np.zeros((len(theta), self.k, self.k))
        exponents = (ALPHA, ALPHA) if self.tied else (ALPHA, BETA)
        for i, j, z in ((A, exponents[0], data.x), (B, exponents[1], data.y)):
            powers = np.stack([np.ones_like(z), -z, z * z], 1)
            level, slope, square = (powers @ (slopes[:, i] * w)[..., None])[..., 0].T
            bend[:, i, i] = level
            bend[:, i, j] = bend[:, j, i] = slope
            bend[:, j, j] += square
        return bend


class Joint:
    """Plain surfaces of G architectures at once: the unknowns are E (one that all share, or G), then log A, log B,
    alpha and beta of each. group [n]: of each point, its architecture; x and y are centred within each."""

    def __init__(self, group: np.ndarray, shared: bool) -> None:
        self.group, self.n_groups = group, int(group.max()) + 1
        self.n_e = 1 if shared else self.n_groups
        low = [0.0] * self.n_e, [FLOOR] * 2 * self.n_groups, [BOUNDS[0]] * 2 * self.n_groups
        self.low = np.concatenate(low)
        self.high = np.where(np.arange(len(self.low)) < self.n_e + 2 * self.n_groups, np.inf, BOUNDS[1])

    @property
    def k(self) -> int:
        return len(self.low)

    def parts(self, theta: np.ndarray) -> list[np.ndarray]:
        """E, log A, log B, alpha, beta of every architecture [r, G]."""
        e = np.broadcast_to(theta[:, : self.n_e], (len(theta), self.n_groups))
        return [e, *np.split(theta[:, self.n_e :], 4, 1)]

    def loss(self, theta: np.ndarray, data: Data) -> np.ndarray:
        return self.slopes(theta, data)[0]

    def slopes(self, theta: np.ndarray, data: Data) -> tuple[np.ndarray, np.ndarray]:
        e, a, b, alpha, beta = (part[:, self.group] for part in self.parts(theta))
        with np.errstate(over="ignore"):
            p, q = np.exp(a - alpha * data.x), np.exp(b - beta * data.y)
        loss = e + p + q
        found = np.zeros((len(theta), self.k, loss.shape[1]))
        at = np.arange(loss.shape[1])
        with np.errstate(invalid="ignore", divide="ignore"):
            p, q = p / loss, q / loss
            found[:, 0 if self.n_e == 1 else self.group, at] = 1 / loss
        for i, value in enumerate((p, q, -p * data.x, -q * data.y)):
            found[:, self.n_e + i * self.n_groups + self.group, at] = value
        return loss, found

    def bend(self, theta: np.ndarray, data: Data, loss: np.ndarray, slopes: np.ndarray, w: np.ndarray) -> np.ndarray:
        found = np.zeros((len(theta), self.k, self.k))
        at, g = np.arange(loss.shape[1]), self.n_groups
        member = self.group[:, None] == np.arange(g)
        for i, z in ((0, data.x), (1, data.y)):
            first, exponent = self.n_e + i * g + np.arange(g), self.n_e + (2 + i) * g + np.arange(g)
            force = slopes[:, first[0] + self.group, at] * w
            found[:, first, first] = force @ member
            found[:, first, exponent] = found[:, exponent, first] = -(force * z) @ member
            found[:, exponent, exponent] = (force * z * z) @ member
        return found


def present(theta: np.ndarray) -> np.ndarray:
    """theta with the terms that were not there raised to PRESENT, so that a search may bring them back."""
    theta = theta.copy()
    theta[:, A:ALPHA] = np.where(theta[:, A:ALPHA] > FLOOR, theta[:, A:ALPHA], np.log(PRESENT))
    return theta


def over_training(surface: Surface) -> dict[str, Any]:
    """a, b and eta of Gadre's form for a surface with alpha = beta."""
    eta = surface.alpha / 2
    return {"a": surface.A * 6**eta, "b": surface.B * 6**eta, "eta": eta}


def parameters(surface: Surface) -> dict[str, Any]:
    """E, A, B, alpha and beta, and R* where the form has it, by name."""
    own = {name: getattr(surface, name) for name in PARAMS}
    return own if surface.r_d is None else own | {"R_star": surface.r_d}
