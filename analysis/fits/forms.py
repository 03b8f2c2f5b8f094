"""The forms of the surface, as the solver sees them: unknowns, the fitted loss with its derivatives, and starts.

plain: E + A / N^alpha + B / D^beta.

over-training (Gadre et al. 2024, eq. 4): E + (a M^eta + b M^-eta) C^-eta with M = D / N. Under C = 6 N D, N is
(C / 6 M)^(1/2) and D is (C M / 6)^(1/2), so this is the plain form with alpha = beta = 2 eta, a = A 6^eta and
b = B 6^eta: four parameters. It fits where the two exponents do agree.

data-constrained (Muennighoff et al. 2023): a token that is read again counts for less, by R_D. Without repeats it is
the plain form.

outer-exponent: E + (A / N^alpha + B / D^beta)^gamma, where the two terms do not just add up. N_opt and D_opt are those
of the plain form with its A, B, alpha and beta.

The unknowns are E, log A, log B, alpha, beta and what a form adds: log A as in Hoffmann et al.'s logsumexp, but E
itself, since log E runs away to minus infinity where E = 0 is best. log N and log D are centred and the loss divided by
its mean, so the units do not matter.

A new form is a subclass of `Form` in FORMS, which the commands, the study key `fit.form`, fits, intervals, leverage and
forecasts read, and what it adds to `Surface` (surface.py), its loss and optimum; nothing else. Where a form is linear
in E, A and B, the solver has these in closed form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.fits.cost import Cost
from analysis.fits.surface import PARAMS, Surface, worth
from arch.errors import InputError, choice

PLAIN, OVER_TRAINING, DATA_CONSTRAINED = "plain", "over_training", "data_constrained"
OUTER_EXPONENT = "outer_exponent"
BOUNDS = (0.005, 3.0)  # of an exponent; one that ends here is not identified
R_STAR = (0.1, 1e4)  # of R_D; likewise
GAMMA = (0.1, 10.0)  # of the outer exponent; likewise
FLOOR = -25.0  # of log A and log B at the centre, over the loss: as good as zero
PRESENT = 1e-2  # of the mean loss: where a term that least squares set to zero starts, since log 0 goes nowhere
GAMMAS = (1.0, 0.5, 2.0, 0.25, 4.0)  # at which searches start
NODES = np.log(np.geomspace(1, 100, 4))  # of log R_D at which searches start
STEP = 1e-6  # of an unknown, for second derivatives by differences
E, A, B, ALPHA, BETA, R_D = range(6)  # unknowns
OUTER = R_D  # gamma, in the place of R_D


Solve = Callable[["Form", "Data"], tuple[np.ndarray, np.ndarray]]


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
    """The plain form, and what others change of it.

    formula: the loss; unknowns: the names [k] of theta, E, A (its logarithm), B (likewise) and more; ranges: of every
    parameter that may end at the end of its range, in the order of `at_bound`; missing: why such a parameter may not be
    identified inside its range; assumed: exponents of the optimum that the form gives by itself, with the reason;
    assumes: what it takes for granted of optima; special: how it differs from the plain form; tied: alpha = beta;
    repeated: it tells repeated tokens from new ones; linear: in E, A and B. low, high: the range [k] of each unknown.
    """

    name = PLAIN
    formula = "E + A / N^alpha + B / D^beta"
    unknowns: tuple[str, ...] = PARAMS
    ranges: Mapping[str, tuple[float, float]] = {"alpha": BOUNDS, "beta": BOUNDS}
    missing: Mapping[str, str] = {
        "alpha": "the best fit has no term of N",
        "beta": "the best fit has no term of D",
    }
    assumed: Mapping[str, str] = {}
    assumes = ""
    special = ""
    tied = False
    repeated = False
    linear = True

    def __init__(self) -> None:
        more = [self.ranges[name] for name in self.unknowns[ALPHA:]]
        self.low = np.array([0.0, FLOOR, FLOOR, *(low for low, _ in more)])
        self.high = np.array([np.inf, np.inf, np.inf, *(high for _, high in more)])

    @property
    def k(self) -> int:
        return len(self.unknowns)

    @property
    def written(self) -> str:
        """Its name in words and as an option."""
        return self.name.replace("_", "-")

    def parameters(self, surface: Surface) -> dict[str, Any]:
        """What a result shows of a surface, by name."""
        return {name: getattr(surface, name) for name in PARAMS}

    def over_training(self, surface: Surface) -> dict[str, Any]:
        """a, b and eta of Gadre's form, where this is it."""
        return {}

    def loss(self, theta: np.ndarray, data: Data) -> np.ndarray:
        """[r, n]."""
        p, q = self.terms(theta, data)
        return np.asarray(theta[:, :1] + p + q)

    def terms(self, theta: np.ndarray, data: Data) -> tuple[np.ndarray, np.ndarray]:
        """The terms of N and of D [r, n]."""
        alpha, beta = theta[:, ALPHA, None], theta[:, ALPHA if self.tied else BETA, None]
        return (
            np.exp(theta[:, A, None] - alpha * data.x),
            np.exp(theta[:, B, None] - beta * self.log_tokens(theta, data)),
        )

    def log_tokens(self, theta: np.ndarray, data: Data) -> np.ndarray:
        """log D', of what the tokens are worth [r or 1, n]."""
        return data.y

    def slopes(self, theta: np.ndarray, data: Data) -> tuple[np.ndarray, np.ndarray]:
        """The loss [r, n], and the derivatives of its logarithm over the unknowns [r, k, n]."""
        p, q = self.terms(theta, data)
        loss = theta[:, :1] + p + q
        slopes = np.empty((len(theta), 5, loss.shape[1]))
        with np.errstate(invalid="ignore", divide="ignore"):
            np.divide(1.0, loss, out=slopes[:, E])
            np.divide(p, loss, out=slopes[:, A])
            np.divide(q, loss, out=slopes[:, B])
        p, q = slopes[:, A], slopes[:, B]
        np.multiply(p, -data.x, out=slopes[:, ALPHA])
        np.multiply(q, -self.log_tokens(theta, data), out=slopes[:, BETA])
        return loss, slopes

    def slopes_of(self, surface: Surface, n_params: Any, n_tokens: Any, unique_tokens: Any = None) -> np.ndarray:
        """[r, n, k]: how log L of r surfaces (or of one) at N and D [n] moves with the unknowns, of E its logarithm."""
        n, d = (np.log(np.atleast_2d(np.asarray(value, dtype=float))) for value in (n_params, n_tokens))
        unique = d if unique_tokens is None else np.minimum(np.log(np.asarray(unique_tokens, dtype=float)), d)
        data = Data(n, d, np.ones_like(n), np.ones_like(n), unique)
        theta = np.atleast_2d(self.theta(surface, data))
        slopes = self.slopes(theta, data)[1]
        if slopes.shape[1] != self.k:
            raise NotImplementedError(f"the form {self.name}: derivatives over {slopes.shape[1]} of {self.k} unknowns")
        slopes[:, E] *= theta[:, E, None]
        return np.moveaxis(slopes, 1, 2)

    def slopes_of_n_opt(self, surface: Surface, flops: Any, cost: Cost) -> np.ndarray:
        """[.., k]: how log N_opt at C [..] of one surface, or of as many, moves with the unknowns, for a cost that is a
        power law about N_opt."""
        log_n = np.log(surface.n_opt(flops, cost))
        log_d, growth = np.log(flops) - cost.log_per_token(log_n), cost.growth(log_n)
        size = 1 / (surface.alpha + growth * surface.beta)
        exponents = [(1 / surface.alpha - log_n) * size, (log_d - 1 / surface.beta) * size]
        moved = [0 * size, size, -size, *([sum(exponents)] if self.tied else exponents)]
        return np.stack(np.broadcast_arrays(*moved, *[0 * size] * (self.k - len(moved))), axis=-1)

    def bend(self, theta: np.ndarray, data: Data, loss: np.ndarray, slopes: np.ndarray, w: np.ndarray) -> np.ndarray:
        """[r, k, k]: second derivatives of the loss over the unknowns, over the loss, times w [r, n], summed."""
        bend = np.zeros((len(theta), self.k, self.k))
        exponents = (ALPHA, ALPHA) if self.tied else (ALPHA, BETA)
        for i, j, z in ((A, exponents[0], data.x), (B, exponents[1], data.y)):
            powers = np.stack([np.ones_like(z), -z, z * z], 1)
            level, slope, square = (powers @ (slopes[:, i] * w)[..., None])[..., 0].T
            bend[:, i, i] = level
            bend[:, i, j] = bend[:, j, i] = slope
            bend[:, j, j] += square
        return bend

    def bend_by_differences(
        self, theta: np.ndarray, data: Data, loss: np.ndarray, slopes: np.ndarray, w: np.ndarray
    ) -> np.ndarray:
        """`bend` of a form that has no closed one."""
        over, bend = w / loss, np.empty((len(theta), self.k, self.k))
        first = loss[:, None] * slopes
        for j in range(self.k):
            moved = theta.copy()
            moved[:, j] += STEP
            there, again = self.slopes(moved, data)
            bend[:, j] = (((there[:, None] * again - first) / STEP) @ over[:, :, None])[..., 0]
        return (bend + np.swapaxes(bend, 1, 2)) / 2

    def starts(self, data: Data, solve: Solve, every: bool, near: Surface | None) -> np.ndarray | None:
        """theta [s r, k] for the r data sets again and again, by least squares of other forms (`solve`), all with
        `every`, near the surface `near`; None: at the best node of the grid of exponents."""
        if any(name not in ("alpha", "beta") for name in self.unknowns[ALPHA:]):
            raise NotImplementedError(f"the form {self.name} says no starts for {', '.join(self.unknowns)}")
        return None

    def surface(self, theta: np.ndarray, data: Data) -> tuple[Surface, np.ndarray]:
        """In the units of the points; and which parameters of `ranges` ended at the end of theirs, or have no term, or
        no weighted row that tells of them [r, ranges]."""
        alpha, beta = theta[:, ALPHA], theta[:, ALPHA if self.tied else BETA]
        terms = np.where(theta[:, A:ALPHA] > FLOOR, np.exp(theta[:, A:ALPHA]), 0.0)
        a, b = terms[:, 0] * np.exp(alpha * data.centre_n), terms[:, 1] * np.exp(beta * data.centre_d)
        at_bound = _at_end(np.stack([alpha, beta], 1), BOUNDS) | (terms <= 0)
        return Surface(theta[:, E] * data.unit, a * data.unit, b * data.unit, alpha, beta), at_bound

    def theta(self, surface: Surface, data: Data) -> np.ndarray:
        """[r, k]: the unknowns of one surface, for each of r data sets, or of r surfaces for one."""
        with np.errstate(divide="ignore"):
            log_a, log_b = (np.maximum(np.log(value / data.unit), -1e3) for value in (surface.A, surface.B))
        values = [surface.E / data.unit, log_a - surface.alpha * data.centre_n, log_b - surface.beta * data.centre_d]
        values += [surface.alpha, *([] if self.tied else [surface.beta])]
        return np.stack(np.broadcast_arrays(*values), -1)

    def is_free(self, surface: Surface, at_bound: np.ndarray) -> np.ndarray:
        """[k] bool: the unknowns of one surface that its points decide. E = 0, a term that is not there, and what
        ended at the end of its range are none."""
        has = [surface.E > 0, surface.A > 0, surface.B > 0]
        ends = dict(zip(self.ranges, at_bound, strict=True))
        return np.array([*has, *(not ends[name] for name in self.unknowns[ALPHA:])], dtype=bool)


def _at_end(values: np.ndarray, ends: tuple[float, float]) -> np.ndarray:
    """Which values, all above 0, lie at an end of their range."""
    return np.asarray((values <= ends[0] * (1 + 1e-9)) | (values >= ends[1] * (1 - 1e-9)))


class OverTraining(Form):
    """One exponent, alpha = beta."""

    name = OVER_TRAINING
    formula = "E + A / N^alpha + B / D^alpha, equally E + (a M^eta + b M^-eta) C^-eta with M = D / N, C = 6 N D"
    unknowns = PARAMS[:BETA]
    assumed = dict.fromkeys(("a", "b"), "assumed: alpha = beta")
    special = " with alpha = beta"
    tied = True

    def over_training(self, surface: Surface) -> dict[str, Any]:
        eta = surface.alpha / 2
        return {"a": surface.A * 6**eta, "b": surface.B * 6**eta, "eta": eta}

    def slopes(self, theta: np.ndarray, data: Data) -> tuple[np.ndarray, np.ndarray]:
        loss, slopes = super().slopes(theta, data)
        slopes[:, ALPHA] += slopes[:, BETA]
        return loss, slopes[:, :BETA]

    def is_free(self, surface: Surface, at_bound: np.ndarray) -> np.ndarray:
        return super().is_free(surface, np.broadcast_to(at_bound.any(), at_bound.shape))


class DataConstrained(Form):
    """D' in the place of D, with log R_D as the sixth unknown."""

    name = DATA_CONSTRAINED
    formula = "E + A / N^alpha + B / D'^beta, D' = U + U R* (1 - exp(-(D / U - 1) / R*)) of U unique tokens"
    unknowns = (*PARAMS, "R_star")
    ranges: Mapping[str, tuple[float, float]] = {**Form.ranges, "R_star": R_STAR}
    missing: Mapping[str, str] = {**Form.missing, "R_star": "no point has repeated tokens"}
    assumes = "N_opt, D_opt and L_opt are of text that is read once: D counts new tokens"
    special = " with repeated data"
    repeated = True

    def __init__(self) -> None:
        super().__init__()
        self.low[R_D], self.high[R_D] = np.log(R_STAR)

    def parameters(self, surface: Surface) -> dict[str, Any]:
        return super().parameters(surface) | {"R_star": surface.r_d}

    def log_tokens(self, theta: np.ndarray, data: Data) -> np.ndarray:
        return np.asarray(data.unique + self._repeats(theta[:, R_D, None], data)[0])

    def slopes(self, theta: np.ndarray, data: Data) -> tuple[np.ndarray, np.ndarray]:
        loss, slopes = super().slopes(theta, data)
        # d log L over log D', times d log D' over log R_D
        of_r = -theta[:, BETA, None] * slopes[:, B] * self._repeats(theta[:, R_D, None], data)[1]
        return loss, np.concatenate([slopes, of_r[:, None]], 1)

    bend = Form.bend_by_differences

    def starts(self, data: Data, solve: Solve, every: bool, near: Surface | None) -> np.ndarray:
        """The plain form at each node of R_D (or at that of `near`), of which the best is kept, or all with `every`."""
        r, nodes = len(data.loss), NODES if near is None else np.log([min(near.r_d, R_STAR[1])])
        log_r = np.repeat(nodes, r)[:, None]
        part = data.take(np.tile(np.arange(r), len(nodes)))
        theta, value = solve(Form(), replace(part, y=part.unique + self._repeats(log_r, part)[0], unique=None))
        theta = np.concatenate([present(theta), log_r], 1)
        return theta if every else theta[value.reshape(-1, r).argmin(0) * r + np.arange(r)]

    def surface(self, theta: np.ndarray, data: Data) -> tuple[Surface, np.ndarray]:
        surface, at_bound = super().surface(theta, data)
        log_r, repeats = theta[:, R_D], (data.weights > 0) & (data.y > data.unique + 1e-9)
        decided = np.broadcast_to(repeats.any(-1), len(theta))
        at_end = (log_r <= self.low[R_D] + 1e-9) | (log_r >= self.high[R_D] - 1e-9) | ~decided
        return replace(surface, r_d=np.where(decided, np.exp(log_r), np.inf)), np.column_stack([at_bound, at_end])

    def theta(self, surface: Surface, data: Data) -> np.ndarray:
        plain, log_r = super().theta(surface, data), np.log(np.clip(surface.r_d, *R_STAR))
        return np.concatenate([plain, np.broadcast_to(log_r, plain.shape[:-1])[..., None]], -1)

    def _repeats(self, log_r: np.ndarray, data: Data) -> tuple[np.ndarray, np.ndarray]:
        """log D' / U at log R_D [r, 1], and its derivative over log R_D."""
        return worth(np.exp(data.y - data.unique), log_r)


class OuterExponent(Form):
    """The sum of the two terms to a power, gamma, the sixth unknown."""

    name = OUTER_EXPONENT
    formula = "E + (A / N^alpha + B / D^beta)^gamma"
    unknowns = (*PARAMS, "gamma")
    ranges: Mapping[str, tuple[float, float]] = {**Form.ranges, "gamma": GAMMA}
    missing: Mapping[str, str] = {**Form.missing, "gamma": ""}  # it ends inside its range or at an end of it
    special = " to an outer exponent"
    linear = False
    bend = Form.bend_by_differences

    def parameters(self, surface: Surface) -> dict[str, Any]:
        return super().parameters(surface) | {"gamma": surface.gamma}

    def loss(self, theta: np.ndarray, data: Data) -> np.ndarray:
        p, q = self.terms(theta, data)
        return np.asarray(theta[:, :1] + (p + q) ** theta[:, OUTER, None])

    def slopes(self, theta: np.ndarray, data: Data) -> tuple[np.ndarray, np.ndarray]:
        p, q = self.terms(theta, data)
        alpha_of, beta_of, gamma = -data.x, -data.y, theta[:, OUTER, None]
        both = p + q
        above = both**gamma
        loss = theta[:, :1] + above
        with np.errstate(invalid="ignore", divide="ignore"):
            p, q, above = gamma * above * p / (both * loss), gamma * above * q / (both * loss), above / loss
            return loss, np.stack([1 / loss, p, q, p * alpha_of, q * beta_of, above * np.log(both)], 1)

    def starts(self, data: Data, solve: Solve, every: bool, near: Surface | None) -> np.ndarray:
        """At each of GAMMAS the form that has the value and the slopes of the plain one in the middle of the points, of
        which the nearest to the losses is kept, or all with `every`."""
        plain = present(solve(Form(), data)[0])
        both = np.logaddexp(plain[:, A], plain[:, B])
        starts = []
        for gamma in GAMMAS:
            terms = plain[:, A:ALPHA] + (1 / gamma - 1) * both[:, None]
            exponents = plain[:, ALPHA:] / gamma
            theta = np.column_stack([plain[:, E], terms, exponents, np.full(len(plain), gamma)])
            starts.append(np.clip(theta, self.low, self.high))
        if every:
            return np.concatenate(starts)
        misses = [(data.weights * (data.loss - self.loss(theta, data)) ** 2).sum(-1) for theta in starts]
        return np.asarray(np.stack(starts)[np.argmin(misses, 0), np.arange(len(plain))])

    def surface(self, theta: np.ndarray, data: Data) -> tuple[Surface, np.ndarray]:
        plain, at_bound = super().surface(theta, data)
        gamma = theta[:, OUTER]
        at_bound = np.column_stack([at_bound, _at_end(gamma, GAMMA)])
        return self._scaled(replace(plain, gamma=gamma), data.unit, 1), at_bound

    def theta(self, surface: Surface, data: Data) -> np.ndarray:
        plain = super().theta(self._scaled(surface, data.unit, -1), data)
        return np.concatenate([plain, np.broadcast_to(surface.gamma, plain.shape[:-1])[..., None]], -1)

    def _scaled(self, surface: Surface, unit: Any, times: int) -> Surface:
        """A and B, to a power less a loss, that are counted in the loss; or, times -1, the other way round."""
        by = unit ** (times * (1 / surface.gamma - 1))
        return replace(surface, A=surface.A * by, B=surface.B * by)


FORMS: dict[str, Form] = {form.name: form for form in (Form(), OverTraining(), DataConstrained(), OuterExponent())}


def form_of(name: str, where: str = "form") -> Form:
    """The form of a name, with - or _. Raises InputError for an unknown one, with those there are."""
    if (form := FORMS.get(name.replace("-", "_"))) is None:
        raise InputError(f"{where}: {name!r}{choice(name, [form.written for form in FORMS.values()])}")
    return form


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
        slopes = np.zeros((len(theta), self.k, loss.shape[1]))
        at = np.arange(loss.shape[1])
        with np.errstate(invalid="ignore", divide="ignore"):
            p, q = p / loss, q / loss
            slopes[:, 0 if self.n_e == 1 else self.group, at] = 1 / loss
        for i, value in enumerate((p, q, -p * data.x, -q * data.y)):
            slopes[:, self.n_e + i * self.n_groups + self.group, at] = value
        return loss, slopes

    def bend(self, theta: np.ndarray, data: Data, loss: np.ndarray, slopes: np.ndarray, w: np.ndarray) -> np.ndarray:
        bend = np.zeros((len(theta), self.k, self.k))
        at, g = np.arange(loss.shape[1]), self.n_groups
        member = self.group[:, None] == np.arange(g)
        for i, z in ((0, data.x), (1, data.y)):
            first, exponent = self.n_e + i * g + np.arange(g), self.n_e + (2 + i) * g + np.arange(g)
            force = slopes[:, first[0] + self.group, at] * w
            bend[:, first, first] = force @ member
            bend[:, first, exponent] = bend[:, exponent, first] = -(force * z) @ member
            bend[:, exponent, exponent] = (force * z * z) @ member
        return bend


def present(theta: np.ndarray) -> np.ndarray:
    """theta with the terms that were not there raised to PRESENT, so that a search may bring them back."""
    theta = theta.copy()
    theta[:, A:ALPHA] = np.where(theta[:, A:ALPHA] > FLOOR, theta[:, A:ALPHA], np.log(PRESENT))
    return theta
