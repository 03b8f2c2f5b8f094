"""The headline of the optimal size: the law that is believed most, and why the others are not."""

from analysis.fits.fit import NOTHING, Estimate, Fit, NotFitted
from analysis.fits.study_fits import StudyFits
from analysis.pages.cells import Number
from analysis.report.believed import believed_rows, leading_law, optimum_sentences

from ..fits.built import fit_of, optimum, study_of


def law(approach: str, reach: float, why: str = "a reason", a: float | None = 0.5) -> Fit:
    n, d = (Estimate(3.2e5, 3e5, 3.5e5), Estimate(4e6)) if a else (NOTHING, NOTHING)
    exponent = NOTHING if a is None else Estimate(a, 0.45, 0.55)
    return fit_of(approach, reach, why, a=exponent, optima=(optimum(1e12, n, d),))


def fits(*laws: Fit, missing: str = "") -> StudyFits:
    failed = (NotFitted("tnl", "isoflop", missing),) if missing else ()
    return study_of(*laws, not_fitted=failed)


def test_the_approach_that_is_believed_leads_though_the_envelope_knows_nothing() -> None:
    result = fits(
        law("envelope", 0, "N_opt is not identified: 2 pairs; 3 are needed", None),
        law("parametric", 10),
    )
    first, others = optimum_sentences(result, "tnl")
    assert first == (
        "The parametric law is believed up to 10 times the largest compute: at C = 10¹² FLOP the optimal TNL has N = "
        "320k [300k, 350k] parameters and "
        "trains on D = 4M tokens; N_opt ~ C^0.500 [0.450, 0.550]."
    )
    assert others == "The envelope law is not believed: N_opt is not identified."
    (row,) = believed_rows(result)
    assert (row["approach"], row["verdict"], row["D_opt at 10¹² FLOP"]) == (
        "parametric",
        "believe up to 10 times the largest compute",
        "4M",
    )
    size = row["N_opt at 10¹² FLOP"]
    assert isinstance(size, Number) and size.value == 3.2e5 and size.ends == (3e5, 3.5e5)


def test_of_laws_that_are_believed_alike_the_envelope_leads() -> None:
    alike = [law(name, 1) for name in ("isoflop", "parametric", "envelope")]
    assert leading_law(fits(*alike), "tnl") is alike[2] and leading_law(fits(*alike[:2]), "tnl") is alike[1]
    assert leading_law(fits(*alike, better := law("isoflop", 10)), "tnl") is better
    (line,) = optimum_sentences(fits(*alike), "tnl")
    assert line.startswith("The envelope law is believed up to the largest compute: ")


def test_where_none_is_believed_the_reasons_stand_and_no_size() -> None:
    result = fits(law("envelope", 0, "one"), law("parametric", 0, "two"), missing="three (1; 2)")
    (line,) = optimum_sentences(result, "tnl")
    assert line == (
        "No approach is believed for the optimal size of TNL. The envelope law is not believed: one. The parametric "
        "law is not believed: two. The isoFLOP law is not fitted: three."
    )
    assert believed_rows(result) == [{"architecture": "TNL", "approach": "none is believed"}]
    none = fits()
    assert optimum_sentences(none, "tnl") == [] and believed_rows(none) == [] and leading_law(none, "tnl") is None
