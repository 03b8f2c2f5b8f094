"""Published laws: the unit of C and 6 N D / C, against the hand calculation of the reference tables."""

from pathlib import Path

import pytest

from analysis.fits.published import UNITS, check_stated, read_stated
from arch.errors import InputError
from flops.laws import DATA

SHARED = Path(__file__).resolve().parents[4] / "shared" / "reference" / "csv" / "003_table03_scaling_laws.csv"

# ../shared/reference/README.md, "Table 3": a+b, factor a decade, 6 N D / C at 1e18 .. 1e24, and C where it is 1.
EXPECTED = {
    "LLaMA": (1.2220, 1.667, (0.120, 0.334, 0.929, 2.583), 1.39e22),
    "TNL": (1.1154, 1.304, (0.504, 0.857, 1.459, 2.482), 3.8e20),
    "HGRN2": (1.0927, 1.238, (0.586, 0.899, 1.377, 2.111), 3.2e20),
    "cosFormer2": (1.1045, 1.272, (0.488, 0.790, 1.279, 2.069), 9.5e20),
}


@pytest.mark.parametrize("path", [DATA / "table3.csv", SHARED], ids=["own copy", "reference"])
def test_the_papers_table_3(path):
    if not path.exists():
        pytest.skip("no reference tables here")
    stated = read_stated(str(path))
    check = check_stated(stated)
    assert check.unit == "PF-days" and check.flop_per_unit == 8.64e19 and check.unit_fits and check.unit_clear
    at_largest = [law.six_nd(law.largest, 8.64e19) for law in stated]
    assert at_largest == pytest.approx([1.02, 1.49, 1.40, 1.30], abs=0.005)
    for law in check.laws:
        total, decade, ratios, one_at = EXPECTED[law.name]
        assert round(law.a_plus_b, 4) == total and round(law.factor_per_decade, 3) == decade
        assert [round(ratio, 3) for ratio in law.six_nd_over_c] == pytest.approx(ratios, abs=0.0011)
        assert law.one_at == pytest.approx(one_at, rel=0.02) and not law.holds
    llama = stated[0]
    for part, value in (("n_opt", 1.13 * 6.48e9), ("d_opt", 1.20 * 300e9), ("loss", 2.452)):
        assert llama.value(part, llama.largest, 8.64e19) == pytest.approx(value, rel=0.005)


@pytest.mark.parametrize("unit", ["FLOP", "PFLOP", "PF-days", "EF-days"])
def test_the_unit_of_a_law_that_holds_is_determined(unit):
    """N = D = sqrt(C / 6), with C counted in any unit."""
    coef = (UNITS[unit] / 6) ** 0.5
    check = check_stated(read_stated(f"N={coef!r} C^0.5,D_opt = {coef!r}*C**0.5"), at=[1e20, 1e23])
    assert check.unit == unit and check.unit_fits and check.unit_clear
    (law,) = check.laws
    assert law.holds and law.six_nd_over_c == pytest.approx([1, 1]) and law.a_plus_b == 1.0


def test_a_unit_that_is_given_is_taken_and_a_law_that_no_unit_makes_right_says_so():
    check = check_stated(read_stated("N=1.82e8 C^0.7118,D=2.56e10 C^0.5102,L=3.7087 C^-0.0798"), "pf-days")
    assert check.flop_per_unit == 8.64e19 and not check.units and check.unit_fits is None
    assert check.laws[0].six_nd_over_c[0] == pytest.approx(0.12024, abs=1e-5)
    assert check_stated(read_stated("N=1 C^0.5,D=1 C^0.5"), "flop").unit == "FLOP"
    assert check_stated(read_stated("N=1e3 C^0.5,D=1e4 C^0.5"), at=[1e22]).unit_fits is False


@pytest.mark.parametrize(
    ("law", "unit", "at", "message"),
    [
        ("N=1 C^0.5", "auto", (), "LAW: cannot read 'N=1 C\\^0.5'"),
        ("N=1 C^0.5,D=2 C^0.5,rest", "auto", (), "cannot read"),
        ("N=1 C^0.5,N=2 C^0.5", "auto", (), "give N, D and perhaps L, each once"),
        ("N=-1 C^0.5,D=2 C^0.5", "flop", (), "n_opt = -1 C\\^0.5 is no power law"),
        ("N=1 C^0.5,D=2 C^0.5", "auto", (), "largest budget behind law is not known: .* --at 1e22"),
        ("N=1 C^0.5,D=2 C^0.5", "pfdayz", (), "--unit: 'pfdayz' is no unit"),
        ("none.csv", "auto", (), "does not exist"),
    ],
)
def test_what_cannot_be_checked(law, unit, at, message):
    with pytest.raises(InputError, match=message) as result:
        check_stated(read_stated(law), unit, at)
    assert "\n" not in str(result.value)


def test_a_table_without_the_columns_of_laws(tmp_path):
    (tmp_path / "t.csv").write_text("arch,n_opt_coef\na,1\n")
    with pytest.raises(InputError, match="has no column n_opt_exponent \\(did you mean 'n_opt_coef'"):
        read_stated(str(tmp_path / "t.csv"))
