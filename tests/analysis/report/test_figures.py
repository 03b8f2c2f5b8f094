"""Figure 1: which law is drawn, how far it is drawn as believed, its title, and its axes."""

from dataclasses import replace

import pandas as pd
import pytest

from analysis.fits.fit import D_OPT, L_OPT, N_OPT, NOTHING, Estimate, Fit, Law
from analysis.fits.study_fits import StudyFits
from analysis.report.figures import NOT_BELIEVED, DrawnLaw, _values, law_of_figure, laws_figure
from analysis.report.laws import drawn_law
from analysis.run_table import RunTable
from analysis.runs import _RUN_COLUMNS

from ..fits.built import fit_of, group_of, optimum, study_of

COMPUTES = (1e12, 1e13, 1e14, 1e15)
RUNS = pd.DataFrame(columns=[*_RUN_COLUMNS, "variant", "left_out"])
EMPTY = RunTable(RUNS, pd.DataFrame(columns=["run_id", "n_tokens", "loss"]), pd.DataFrame(columns=["run_id"]))


def law(approach: str, reach: float, a: float | None = 0.6) -> Fit:
    """Of 1e12 to 1e14 FLOP; L has no interval beyond."""
    curve = [optimum(c, Estimate(c**0.6, c**0.6 / 2, c**0.6 * 2), Estimate(c**0.4), Estimate(2.0)) for c in COMPUTES]
    drawn = () if approach == "envelope" else tuple(curve)
    exponent = NOTHING if a is None else Estimate(a, 0.5, 0.7)
    return fit_of(approach, reach, a=exponent, b=Estimate(0.4), span=(1e12, 1e14), curve=drawn)


def fits(*laws: Fit) -> StudyFits:
    return study_of(*laws, groups=[group_of("tnl"), group_of("llama")])


def lines(fits: StudyFits, quantity: str) -> list:
    """The lines of TNL in the row of all architectures, in the panel of a quantity."""
    figure = laws_figure(fits, EMPTY, None, [None])
    axis = {L_OPT: "x", N_OPT: "x2", D_OPT: "x3"}[quantity]
    return [trace for trace in figure.data if trace.xaxis == axis and trace.name == "TNL"]


def test_the_law_that_is_drawn_is_the_one_believed_most_and_the_envelope_only_where_it_knows_a_size() -> None:
    knows, knows_not = law("envelope", 0), law("envelope", 0, None)
    surface, budgets = law("parametric", 0), law("isoflop", 0)
    assert drawn_law(fits(knows, surface), "tnl") is None
    assert drawn_law(fits(knows_not, budgets, surface), "tnl") is surface
    assert drawn_law(fits(knows, better := law("isoflop", 1)), "tnl") is better
    assert drawn_law(fits(knows_not), "tnl") is drawn_law(fits(), "tnl") is drawn_law(fits(surface), "llama") is None
    assert drawn_law(fits(knows_not, replace(surface, curve=())), "tnl") is None


def test_axes_without_any_held_out_loss_are_drawn_though_there_are_curves() -> None:
    """As of runs that were interrupted before their first evaluation."""
    result = fits()
    held_out = replace(result, settings=result.settings.model_copy(update={"loss": "validation"}))
    curves = pd.DataFrame({"run_id": ["a"], "n_tokens": [1000.0], "loss": [3.0], "flops_exact": [1e9]})
    evals = pd.DataFrame(columns=["run_id", "n_tokens", "loss", "phase"])
    assert laws_figure(held_out, replace(EMPTY, curves=curves, evals=evals), None, [None]).layout.xaxis.range


@pytest.mark.parametrize(
    ("reach", "solid", "dashed"),
    [(1e9, COMPUTES, None), (1, COMPUTES[:3], COMPUTES[2:]), (0, None, COMPUTES)],
)
def test_laws_are_dashed_beyond_what_is_believed_and_bands_stay_inside_the_range(
    reach: float, solid: tuple[float, ...] | None, dashed: tuple[float, ...] | None
) -> None:
    result = fits(law("parametric", reach))
    drawn = {line.line.dash: line for line in lines(result, N_OPT)}
    for dash, computes in (("solid", solid), ("dash", dashed)):
        if computes is None:
            assert dash not in drawn
        else:
            assert drawn[dash].x == computes and drawn[dash].y == tuple(c**0.6 for c in computes)
    figure = laws_figure(result, EMPTY, None, [None])
    (band,) = [trace for trace in figure.data if trace.fill and trace.xaxis == "x2"]
    assert set(band.x) == set(COMPUTES[:3]) and max(band.y) == pytest.approx(2 * 1e14**0.6)
    assert len([line for line in lines(result, L_OPT) if line.showlegend]) == 1


@pytest.mark.parametrize(
    ("approach", "reach", "quantity", "title"),
    [
        ("parametric", 0, N_OPT, "N<sub>opt</sub> ~ C<sup> 0.600</sup> [0.500, 0.700] (not believed)"),
        ("parametric", 0, L_OPT, "L at N<sub>opt</sub> (not believed)"),
        ("isoflop", 10, L_OPT, "L at N<sub>opt</sub>: isoFLOP"),
        ("isoflop", 10, D_OPT, "D<sub>opt</sub> ~ C<sup> 0.400</sup>"),
    ],
)
def test_titles_say_the_law(approach: str, reach: float, quantity: str, title: str) -> None:
    assert law_of_figure(fits(law(approach, reach)), "tnl", quantity).title == title


def test_an_interval_that_is_not_believed_widens_no_axis() -> None:
    rows = [(1e12, 2.0, (1.9, 2.1)), (1e13, 1.8, (0.01, 40.0)), (1e15, 0.1, None)]
    drawn = DrawnLaw(rows, (1e12, 1e14), 1e12, "")
    assert _values([drawn]) == [2.0, 1.9, 2.1, 1.8] and _values([replace(drawn, believed=0.0)]) == [2.0, 1.8]


@pytest.mark.parametrize(("reach", "dash"), [(1, "solid"), (0, "dash")])
def test_laws_of_the_envelope_that_are_not_believed_are_dashed_too_but_for_the_loss(reach: float, dash: str) -> None:
    """The headline says that no approach is believed: figure 1 must not draw a full line there."""
    half, three = Estimate(0.5), Estimate(3.0)
    laws = [
        Law(name, exponent=half, coefficient=three, centre=(1e13, 2.0), range=(1e12, 1e14))
        for name in (N_OPT, D_OPT, L_OPT)
    ]
    result = study_of(fit_of("envelope", reach, laws=laws))
    assert [lines(result, name)[0].line.dash for name in (L_OPT, N_OPT)] == ["solid", dash]
    names = [trace.name for trace in laws_figure(result, EMPTY, None, [None]).data]
    assert (NOT_BELIEVED in names) is (dash == "dash")
