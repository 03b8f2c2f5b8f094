"""The forms of the surface, as the solver sees them: unknowns, the fitted loss with its derivatives, and starts.

plain: E + A / N^alpha + B / D^beta.

over-training (Gadre et al. 2024, eq. 4): E + (a M^eta + b M^-eta) C^-eta with M = D / N. Under C = 6 N D, N is
(C / 6 M)^(1/2) and D is (C M / 6)^(1/2), so this is the plain form with alpha = beta = 2 eta, a = A 6^eta and
b = B 6^eta: four parameters. It fits where the two exponents do agree.

data-constrained (Muennighoff et al. 2023): a token that is read again counts for less, by R_D; N counts in full.
data-constrained-both is the form as they publish it: parameters beyond those that are compute-optimal for the unique
tokens count for less too, by R_N. Without repeats both are the plain form.

The unknowns are E, log A, log B, alpha, beta and what a form adds: log A as in Hoffmann et al.'s logsumexp, but E
itself, since log E runs away to minus infinity where E = 0 is best. log N and log D are centred and the loss divided by
its mean, so the units do not matter. A new form has a name in FORMS, its unknowns, slopes and starts in
`Form`, and its loss and optimum in `Surface` (surface.py); the solver takes the loss as linear in E, A and B, so
that an exponent about the whole needs more there (solver.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.fits.surface import PARAMS, Surface, worth

PLAIN, OVER_TRAINING, DATA_CONSTRAINED, BOTH = "plain", "over_training", "data_constrained", "data_constrained_both"
FORMS = {
    PLAIN: "E + A / N^alpha + B / D^beta",
    OVER_TRAINING: "E + A / N^alpha + B / D^alpha, equally E + (a M^eta + b M^-eta) C^-eta with M = D / N, C = 6 N D",
    DATA_CONSTRAINED: "E + A / N^alpha + B / D'^beta, D' = U + U R* (1 - exp(-(D / U - 1) / R*)) of U unique tokens",
    BOTH: "E + A / N'^alpha + B / D'^beta, D' = U + U R* (1 - exp(-(D / U - 1) / R*)) of U unique tokens, N' the same "
    "with R_N* and, for U, U_N: the parameters that are compute-optimal for U tokens under C = 6 N D",
}
REPEATED = (DATA_CONSTRAINED, BOTH)
BOUNDS = (0.005, 3.0)  # of an exponent; one that ends here is not identified
R_STAR = (0.1, 1e4)  # of R_D and R_N; likewise
FLOOR = -25.0  # of log A and log B at the centre, over the loss: as good as zero
PRESENT = 1e-2  # of the mean loss: where a term that least squares set to zero starts, since log 0 goes nowhere
MOST_EXCESS = 60.0  # of log N over the optimal parameters, beyond which exp would run away
NODES_D = np.log(np.geomspace(1, 100, 4))  # of log R_D and log R_N at which searches start
NODES_N = np.log(np.geomspace(0.5, 50, 3))
STEP = 1e-6  # of an unknown, for second derivatives by differences
E, A, B, ALPHA, BETA, R_D, R_N = range(7)  # unknowns


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
        self.tied, self.repeated, self.excess = name == OVER_TRAINING, name in REPEATED, name == BOTH
        ends = np.log(R_STAR)
        self.low = np.array([0.0, FLOOR, FLOOR, BOUNDS[0], BOUNDS[0], ends[0], ends[0]])
        self.high = np.array([np.inf, np.inf, np.inf, BOUNDS[1], BOUNDS[1], ends[1], ends[1]])
        kept = [E, A, B, ALPHA, *([] if self.tied else [BETA]), *[R_D, R_N][: self.repeated + self.excess]]
        self.low, self.high = self.low[kept], self.high[kept]

    @property
    def k(self) -> int:
        return len(self.low)

    def loss(self, theta: np.ndarray, data: Data) -> np.ndarray:
        """[r, n]."""
        p, q = self.terms(theta, data)
        return np.asarray(theta[:, :1] + p + q)

    def terms(self, theta: np.ndarray, data: Data) -> tuple[np.ndarray, np.ndarray]:
        """The terms of N and of D [r, n]."""
        return self._terms(theta, *self._amounts(theta, data))

    def slopes(self, theta: np.ndarray, data: Data) -> tuple[np.ndarray, np.ndarray]:
        """The loss [r, n], and the derivatives of its logarithm over the unknowns [r, k, n]."""
        x, y = self._amounts(theta, data)
        p, q = self._terms(theta, x, y)
        loss = theta[:, :1] + p + q
        slopes = np.empty((len(theta), 5, loss.shape[1]))
        with np.errstate(invalid="ignore", divide="ignore"):
            np.divide(1.0, loss, out=slopes[:, E])
            np.divide(p, loss, out=slopes[:, A])
            np.divide(q, loss, out=slopes[:, B])
        p, q = slopes[:, A], slopes[:, B]
        np.multiply(p, -x, out=slopes[:, ALPHA])
        np.multiply(q, -y, out=slopes[:, BETA])
        if self.tied:
            slopes[:, ALPHA] += slopes[:, BETA]
            return loss, slopes[:, :BETA]
        if not self.repeated:
            return loss, slopes
        found = list(np.moveaxis(slopes, 1, 0))
        pull_n, pull_d = -theta[:, ALPHA, None] * p, -theta[:, BETA, None] * q  # d log L over log N' and log D'
        found.append(pull_d * self._tokens(theta[:, R_D, None], data)[1])
        if self.excess:
            moved = self._moved_params(theta, data)
            found = [one + pull_n * more for one, more in zip([*found, 0.0], moved, strict=True)]
        return loss, np.stack(found, 1)

    def bend(self, theta: np.ndarray, data: Data, loss: np.ndarray, slopes: np.ndarray, w: np.ndarray) -> np.ndarray:
        """[r, k, k]: second derivatives of the loss over the unknowns, over the loss, times w [r, n], summed."""
        if not self.repeated:
            return self._plain_bend(theta, data, slopes, w)
        over, found = w / loss, np.empty((len(theta), self.k, self.k))
        first = loss[:, None] * slopes
        for j in range(self.k):
            moved = theta.copy()
            moved[:, j] += STEP
            there, again = self.slopes(moved, data)
            found[:, j] = (((there[:, None] * again - first) / STEP) @ over[:, :, None])[..., 0]
        return (found + np.swapaxes(found, 1, 2)) / 2

    def starts(self, data: Data, solve: Any, every: bool, near: Surface | None) -> np.ndarray:
        """theta [s r, k] of a form with R*, for the r data sets again and again: least squares of the plain form
        (`solve`) at each node of R* (or `near` one), of which the best is kept, or all with `every`."""
        r, plain = len(data.loss), Form()

        def at(ends: np.ndarray, x: np.ndarray | None = None) -> np.ndarray:
            """Where log R* are `ends` [s r, 1 or 2] and log N' is x (log N)."""
            part = data.take(np.tile(np.arange(r), len(ends) // r))
            y = part.unique + self._tokens(ends[:, :1], part)[0]
            part = replace(part, x=part.x if x is None else x, y=y, unique=None)
            theta, value = solve(plain, part)
            theta = np.concatenate([present(theta), ends], 1)
            return theta if every else theta[value.reshape(-1, r).argmin(0) * r + np.arange(r)]

        nodes_d, nodes_n = NODES_D, NODES_N
        if near is not None:
            nodes_d, nodes_n = (np.log([min(s if s is not None else np.inf, R_STAR[1])]) for s in (near.r_d, near.r_n))
        ends = np.full((len(nodes_d), 1 + self.excess), np.log(R_STAR[1]))  # R_N there: N counts as good as in full
        ends[:, 0] = nodes_d
        theta = at(np.repeat(ends, r, 0))
        if not self.excess:
            return theta
        theta = np.tile(theta, (len(nodes_n), 1))
        theta[:, R_N] = np.repeat(nodes_n, len(theta) // len(nodes_n))
        part = data.take(np.tile(np.arange(r), len(theta) // r))
        return at(theta[:, R_D:], self._amounts(theta, part)[0])

    def full(self, theta: np.ndarray) -> np.ndarray:
        """[r, 5 or more]: with beta, where the form ties it to alpha."""
        return np.insert(theta, BETA, theta[:, ALPHA], 1) if self.tied else theta

    def surface(self, theta: np.ndarray, data: Data) -> tuple[Surface, np.ndarray]:
        """In the units of the points; and which of alpha, beta, R_D and R_N ended at the end of their range, or have no
        term, or no weighted row that tells of them [r, 4]."""
        full = self.full(theta)
        terms = np.where(full[:, A:ALPHA] > FLOOR, np.exp(full[:, A:ALPHA]), 0.0)
        alpha, beta = full[:, ALPHA], full[:, BETA]
        a, b = terms[:, 0] * np.exp(alpha * data.centre_n), terms[:, 1] * np.exp(beta * data.centre_d)
        at_bound = np.zeros((len(full), 4), dtype=bool)
        exponents = full[:, ALPHA : BETA + 1]
        at_bound[:, :2] = (exponents <= BOUNDS[0] * (1 + 1e-9)) | (exponents >= BOUNDS[1] * (1 - 1e-9)) | (terms <= 0)
        stars: list[np.ndarray] = []
        if data.unique is not None:
            seen = data.weights > 0
            decided = [np.broadcast_to((seen & (data.y > data.unique + 1e-9)).any(-1), len(full))]
            if self.excess:
                decided.append(np.asarray((seen & (data.x > self._optimal(full, data))).any(-1)))
            for i, is_decided in enumerate(decided):
                log_r = full[:, R_D + i]
                stars.append(np.where(is_decided, np.exp(log_r), np.inf))
                at_bound[:, 2 + i] = (log_r <= self.low[-1] + 1e-9) | (log_r >= self.high[-1] - 1e-9) | ~is_decided
        return Surface(full[:, E] * data.unit, a * data.unit, b * data.unit, alpha, beta, *stars), at_bound

    def theta(self, surface: Surface, data: Data) -> np.ndarray:
        """[r, k]: the unknowns of one surface, for each of r data sets."""
        with np.errstate(divide="ignore"):
            log_a, log_b = (np.maximum(np.log(value / data.unit), -1e3) for value in (surface.A, surface.B))
        values = [surface.E / data.unit, log_a - surface.alpha * data.centre_n, log_b - surface.beta * data.centre_d]
        values += [surface.alpha, *([] if self.tied else [surface.beta])]
        stars = [surface.r_d, surface.r_n][: self.repeated + self.excess]
        return np.stack(np.broadcast_arrays(*values, *(np.log(np.clip(star, *R_STAR)) for star in stars)), -1)

    def is_free(self, surface: Surface, at_bound: np.ndarray) -> np.ndarray:
        """[k] bool: the unknowns of one surface that its points decide. E = 0, a term that is not there, and what
        ended at the end of its range are none."""
        has = [surface.E > 0, surface.A > 0, surface.B > 0]
        inside = [*(has[1:] & ~at_bound[:2]), *~at_bound[2:]]
        exponents = [inside[0] and inside[1]] if self.tied else inside[:2]
        return np.array([*has, *exponents, *inside[2 : 2 + self.repeated + self.excess]], dtype=bool)

    def _amounts(self, theta: np.ndarray, data: Data) -> tuple[np.ndarray, np.ndarray]:
        """log N' and log D' [r or 1, n]."""
        if not self.repeated:
            return data.x, data.y
        y = data.unique + self._tokens(theta[:, R_D, None], data)[0]
        if not self.excess:
            return data.x, y
        optimal = self._optimal(theta, data)
        over = np.clip(data.x - optimal, 0.0, MOST_EXCESS)
        return np.where(over > 0, optimal + worth(np.exp(over), theta[:, R_N, None])[0], data.x), y

    def _terms(self, theta: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        alpha, beta = theta[:, ALPHA, None], theta[:, ALPHA if self.tied else BETA, None]
        return np.exp(theta[:, A, None] - alpha * x), np.exp(theta[:, B, None] - beta * y)

    def _tokens(self, log_r: np.ndarray, data: Data) -> tuple[np.ndarray, np.ndarray]:
        """log D' / U at log R_D [r, 1], and its derivative over log R_D."""
        log, _, over_r = worth(np.exp(data.y - data.unique), log_r)
        return log, over_r

    def _optimal(self, theta: np.ndarray, data: Data) -> np.ndarray:
        """[r, n]: log of the parameters that are compute-optimal for the unique tokens, centred as x is."""
        a, b, alpha, beta = theta.T[A : BETA + 1, :, None]
        return np.asarray((np.log(alpha / beta) + a - b + beta * data.unique) / alpha)

    def _moved_params(self, theta: np.ndarray, data: Data) -> list[Any]:
        """Of each unknown, the derivative of log N' [r, n]."""
        alpha, beta = theta[:, ALPHA, None], theta[:, BETA, None]
        optimal = self._optimal(theta, data)
        over = np.clip(data.x - optimal, 0.0, MOST_EXCESS)
        _, z, over_r = worth(np.exp(over), theta[:, R_N, None])
        along = np.where(over > 0, 1 - z, 0.0)  # of log N' over log of the optimal ones
        of_beta = (data.unique - 1 / beta) / alpha
        found = [0.0, along / alpha, -along / alpha, along * (1 / alpha**2 - optimal / alpha), along * of_beta]
        return [*found, 0.0, np.where(over > 0, over_r, 0.0)]

    def _plain_bend(self, theta: np.ndarray, data: Data, slopes: np.ndarray, w: np.ndarray) -> np.ndarray:
        found = np.zeros((len(theta), self.k, self.k))
        exponents = (ALPHA, ALPHA) if self.tied else (ALPHA, BETA)
        for i, j, z in ((A, exponents[0], data.x), (B, exponents[1], data.y)):
            powers = np.stack([np.ones_like(z), -z, z * z], 1)
            level, slope, square = (powers @ (slopes[:, i] * w)[..., None])[..., 0].T
            found[:, i, i] = level
            found[:, i, j] = found[:, j, i] = slope
            found[:, j, j] += square
        return found


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


def stars_of(surface: Surface) -> dict[str, Any]:
    """R_D and R_N by the names that results have for them, where the form has them."""
    stars = {"R_star": surface.r_d, "R_N_star": surface.r_n}
    return {name: value for name, value in stars.items() if value is not None}


def parameters(surface: Surface) -> dict[str, Any]:
    """E, A, B, alpha and beta, and what the form has beside them, by name."""
    return {name: getattr(surface, name) for name in PARAMS} | stars_of(surface)
