"""What a published study's files are: the same, rounded by other versions, or different."""

from pathlib import Path

from analysis.publish.check import ROUNDED, SAME, compared, differ
from data.files import json_bytes, write_json


def state_of(folder: Path, stored: object, made: object) -> str:
    write_json(folder / "fits.json", stored)
    return compared(folder / "fits.json", json_bytes(made))


def test_rounding_is_reported_and_is_no_difference_under_other_versions(tmp_path: Path) -> None:
    stored = {"a": [0.1, 2.0], "n": 3, "name": "x"}
    assert state_of(tmp_path, stored, stored) == SAME
    rounded = state_of(tmp_path, stored, stored | {"a": [0.1, 2.0 * (1 + 4e-16)]})
    assert rounded.startswith(f"{ROUNDED}: 1 of 4 values, numbers by up to 4.4e-16")
    assert differ({"fits.json": rounded}) == ["fits.json"]  # of the same versions the bits are the same
    assert differ({"fits.json": rounded}, "python 3.11 (here 3.12)") == []


def test_what_no_rounding_makes_is_a_difference(tmp_path: Path) -> None:
    stored = {"a": [0.1, 2.0], "n": 3, "name": "x", "good": True}
    for made in (
        stored | {"a": [0.1, 2.0 * (1 + 1e-8)]},
        stored | {"name": "y"},
        stored | {"good": 1 - 1e-16 > 2},
        stored | {"a": [0.1]},
        stored | {"n": None},
    ):
        difference = state_of(tmp_path, stored, made)
        assert difference.startswith("differs: ") and differ({"fits.json": difference}, "python 3.11 (here 3.12)")
    assert compared(tmp_path / "fits.json", b'{"a": [0.1, NaN]}').startswith("differs: ")
