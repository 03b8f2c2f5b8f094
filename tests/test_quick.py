"""`make check` covers every package."""

from tests.conftest import LONG
from tests.quick import CONTRACTS, ROOT
from tests.test_house import PACKAGES

FLOORS = ("scaling.study", "scaling.rundir", "scaling.trainer", "analysis.fits", "analysis.evals")


def test_the_quick_tests_are_there_and_cover_every_package():
    named = [test for tests in CONTRACTS.values() for test in tests]
    assert not [test for test in named if not (ROOT / test.partition("::")[0]).is_file()]
    covered = {contract.partition(":")[0] for contract in CONTRACTS}
    packages = set(PACKAGES) - {"scaling", "analysis"} | {"docs", *FLOORS}
    assert packages <= covered
    folders = {test.split("/")[1] for test in named if test.count("/") > 1}
    assert {*PACKAGES, "docs"} <= folders


def test_the_files_that_start_first_are_there():
    assert not [name for name in LONG if not (ROOT / "tests" / name).is_file()]
