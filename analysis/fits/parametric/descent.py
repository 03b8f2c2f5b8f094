"""One damped descent for r searches at once, and the fit with E >= 0 that is made of it.

What is descended is an `Objective`: it tells its value, gradient and curvature at the unknowns, proposes a step, and
says which unknowns are legal. A step that goes down is kept and lowers the damping, another raises it. Searches that
have ended leave the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, Self, TypeVar

import numpy as np

BOUNDS = (0.005, 3.0)  # of an exponent; one that ends here is not identified
FIRST_DAMPING = 1e-3


@dataclass(frozen=True)
class Problem:
    """Centred log N and log D, loss and weights, each [r or 1, n]; every row's weights sum to 1. `fixed_e` [r]: E where
    it is given. `tied`: alpha = beta."""

    x: np.ndarray
    y: np.ndarray
    loss: np.ndarray
    weights: np.ndarray
    fixed_e: np.ndarray | None = None
    tied: bool = False

    def take(self, which: np.ndarray) -> Self:
        """The data sets of an index or a mask; an array that all share stays as it is."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray) and len(value) != 1}
        return replace(self, **{name: value[which] for name, value in arrays.items()})


@dataclass(frozen=True)
class State:
    """What an objective tells of r trials: its value [r] and gradient [r, k]; more fields [r, ...] of its own."""

    value: np.ndarray
    gradient: np.ndarray

    def take(self, which: Any) -> Self:
        return replace(self, **{one.name: getattr(self, one.name)[which] for one in fields(self)})

    def where(self, better: np.ndarray, other: Self) -> Self:
        """Rows of this one where `better`, else of the other."""

        def one(name: str) -> np.ndarray:
            new, old = getattr(self, name), getattr(other, name)
            return np.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old)

        return replace(self, **{each.name: one(each.name) for each in fields(self)})


S = TypeVar("S", bound=State)


class Objective(Protocol[S]):
    """Of unknowns [r, k] of a problem."""

    def inside(self, problem: Problem, unknowns: np.ndarray) -> np.ndarray:
        """The nearest legal ones."""

    def evaluate(self, problem: Problem, unknowns: np.ndarray) -> S: ...

    def step(self, state: S, unknowns: np.ndarray, damping: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The step [r, k] from there, and which directions are held at a bound."""

    def ended_well(self, state: S, step: np.ndarray, held: np.ndarray, stuck: np.ndarray) -> np.ndarray:
        """[r]: whether nothing goes down any more where a search ends; `stuck`: it ends for no step that did."""

    def linear(self, unknowns: np.ndarray, state: S) -> np.ndarray:
        """[r, 1 or more]: E there, and what else follows from the unknowns."""


@dataclass(frozen=True)
class Rules:
    """When a search ends: after `steps`, where no unknown moves by `small`, or where `stiff` damping goes nowhere.
    Damping falls no lower than `least`, and a rejected step starts from `first` at least."""

    steps: int
    small: float
    stiff: float
    least: float
    first: float


@dataclass(frozen=True)
class Found:
    """Where r searches ended: the unknowns [r, k], the objective's value and `linear` there, and whether each ended
    well."""

    unknowns: np.ndarray
    value: np.ndarray
    linear: np.ndarray
    ended_well: np.ndarray

    def put(self, rows: np.ndarray, other: Found, of: Any = slice(None)) -> None:
        """Write rows `of` the other into these rows."""
        for one in fields(self):
            getattr(self, one.name)[rows] = getattr(other, one.name)[of]


def descend(objective: Objective[S], problem: Problem, starts: np.ndarray, rules: Rules) -> Found:
    """From `starts` [r, k], each down to where nothing goes down any more."""
    unknowns = objective.inside(problem, starts)
    active, part, damping = np.arange(len(unknowns)), problem, np.full(len(unknowns), FIRST_DAMPING)
    state = objective.evaluate(problem, unknowns)
    linear = np.array(objective.linear(unknowns, state))
    found = Found(unknowns, np.array(state.value), linear, np.zeros(len(unknowns), dtype=bool))
    for _ in range(rules.steps if len(unknowns) else 0):
        here = found.unknowns[active]
        step, held = objective.step(state, here, damping)
        there = objective.inside(part, here + step)
        tried = objective.evaluate(part, there)
        better = tried.value < state.value
        moved = np.abs(there - here).max(1)
        here = np.where(better[:, None], there, here)
        state = tried.where(better, state)
        found.unknowns[active], found.value[active] = here, state.value
        found.linear[active] = objective.linear(here, state)
        damping = np.where(better, np.maximum(damping / 10, rules.least), np.maximum(damping, rules.first) * 10)
        stuck = ~better & (damping > rules.stiff)
        done = (moved < rules.small) | stuck
        if done.any():
            found.ended_well[active] = done & objective.ended_well(state, step, held, stuck)
            active = active[~done]
            if not len(active):
                break
            state, damping, part = state.take(~done), damping[~done], problem.take(active)
    return found


def with_e_not_negative(
    problem: Problem,
    starts: np.ndarray | None,
    search: Callable[[Problem, np.ndarray | None], Found],
    rising: Callable[[Problem, np.ndarray], np.ndarray] | None = None,
) -> Found:
    """`search` of the problem from `starts` [r, k] (None: its own), with E >= 0.

    Where the search wants E < 0 the fit with E = 0 is searched as a problem of its own, which is smooth too; should the
    objective fall as E rises from there (`rising` tells of which [r] that is so; all are tried without it), the search
    goes on from there.
    """
    found = search(problem, starts)
    below = np.flatnonzero(found.linear[:, 0] < 0)
    if problem.fixed_e is not None or not len(below):
        return found
    part = problem.take(below)
    again = search(replace(part, fixed_e=np.zeros(len(below))), None if starts is None else starts[below])
    rows = np.arange(len(below)) if rising is None else np.flatnonzero(rising(part, again.unknowns))
    more = search(part.take(rows), again.unknowns[rows])
    better = np.flatnonzero((more.linear[:, 0] >= 0) & (more.value < again.value[rows]))
    found.put(below, again)
    found.put(below[rows[better]], more, better)
    return found
