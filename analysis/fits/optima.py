"""A power law through optima that are given, pairs of C and N_opt as papers print them, without the runs behind them.

Least squares of log N_opt over log C, weighted by the pairs' errors where these are given and by a scatter between
pairs, which is estimated (isoflop.Line); intervals by Student's t with two degrees of freedom less than pairs,
and never narrower than the errors alone make them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.fits.fit import D_OPT, GIVEN_OPTIMA, L_OPT, N_OPT, Fit, Intervals, Law, Objective, Optimum
from analysis.fits.isoflop import Line, Noise
from analysis.fits.points import refuse_impossible
from analysis.fits.tables.cells import Condition, numbers
from analysis.fits.tables.columns import OPTIMUM, choose_optima
from analysis.fits.tables.files import read_frame
from arch.errors import InputError

NEEDED = 3  # two pairs fix a line
NO_LOSS = "the optima that are given have no losses"
AS_GIVEN = "the optima are taken as they stand: nothing checks them, and there is no verdict"


def read_optima(path: str | Path, columns: Mapping[str, str], where: Sequence[str] = ()) -> tuple[pd.DataFrame, str]:
    """C, N_opt and the standard deviation of N_opt (0 where it is not given) of the rows of a table that `where` keeps,
    as `flops`, `n_opt` and `n_opt_error`, and which column was read as what. Raises InputError, one line, for what is
    missing, ambiguous or no positive number, and for fewer than three pairs at different C."""
    frame = read_frame(path)
    try:
        chosen = choose_optima(list(frame.columns), columns)
        for text in where:
            condition = Condition.of(text, [*frame.columns, *chosen])
            frame = frame[condition.holds(frame[chosen.get(condition.column, condition.column)])]
        optima = pd.DataFrame({field: numbers(frame[name], field) for field, name in chosen.items()}, frame.index)
        for field in chosen:
            refuse_impossible(field, optima[field].to_numpy(), optima.index.to_numpy())
        if (n_different := optima["flops"].nunique()) < NEEDED:
            raise InputError(f"a law through optima needs {NEEDED} or more at different C; these have {n_different}")
    except InputError as error:
        raise InputError(str(error) if str(error).startswith("--") else f"{path}: {error}") from None
    return optima.reindex(columns=list(OPTIMUM), fill_value=0.0), ", ".join(map(" = ".join, chosen.items()))


def fit_optima(optima: pd.DataFrame, at: Sequence[float] = (), level: float = 0.95) -> Fit:
    """Laws of N_opt and, by C = 6 N D, of D_opt through the optima of `read_optima`; at: C [FLOP] of optima."""
    c, n_opt, error = (optima[name].to_numpy() for name in OPTIMUM)
    log_c, own = np.log(c), (error / n_opt) ** 2
    lines = {N_OPT: np.log(n_opt), D_OPT: log_c - np.log(6 * n_opt)}
    laws = {name: Line.through(log_c, y, own, np.diag(own), Noise(0.0, 0.0, math.inf)) for name, y in lines.items()}
    low, high = float(c.min()), float(c.max())

    def optimum(at_c: float) -> Optimum:
        return Optimum(at_c, *(law.value(at_c, level) for law in laws.values()))

    middle = optimum(math.sqrt(low * high))
    described = [
        Law(name, law.exponent(level), centre=(middle.flops, middle.of(name).value or 0.0), range=(low, high))
        for name, law in laws.items()
    ]
    return Fit(
        approach=GIVEN_OPTIMA,
        group="",
        n_points=len(c),
        n_runs=len(c),
        input_hash=hashlib.sha256(repr(sorted(zip(c, n_opt, error, strict=True))).encode()).hexdigest(),
        range=(low, high),
        conventions={"C": "6nd"},
        objective=Objective("least squares of log N_opt over log C, weighted by errors and a scatter between optima"),
        intervals=Intervals(f"Student's t with {len(c) - 2} degrees of freedom", level),
        laws=(*described, Law(L_OPT, reason=NO_LOSS)),
        middle=middle,
        optima=tuple(optimum(at_c) for at_c in at),
        notes=(AS_GIVEN,),
    )
