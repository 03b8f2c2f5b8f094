"""The findings of a published study: no number that the tables, or the notes on how it was trained, do not have."""

import json
import re

import pytest

from data.files import read_json
from docs.generate import GENERATED, ROOT
from scaling.bundle.merge import unpack

NUMBER = re.compile(r"\d[\d,]*\.\d+|\d+(?=%)")
FOLDERS = sorted((ROOT / "analysis" / "studies").glob("*/FINDINGS.md"))


@pytest.mark.parametrize("path", FOLDERS, ids=lambda path: path.parent.name)
def test_every_number_of_the_prose_stands_in_a_table(path):
    text = path.read_text(encoding="utf-8")
    how_trained = ROOT / "docs" / "research" / "study-h200-hour.md"
    beside = [path.parent / "RESULTS.md", path.parent / "study.yaml", how_trained]
    known = "\n".join([*(part[0] for part in GENERATED.finditer(text)), *(file.read_text() for file in beside)])
    numbers = NUMBER.findall(GENERATED.sub("", text))
    assert len(numbers) > 5
    missing = [number for number in numbers if not re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", known)]
    assert not missing


def test_repeats_are_what_the_bundles_say(tmp_path):
    """The bundles grow, and a file that is kept beside them would not follow."""
    place = ROOT / "analysis" / "studies"
    for name in ("h200-hour", "h200-hour-repeat"):
        unpack(place / "bundles" / f"{name}.tar.xz", tmp_path / name)
    for repeat in json.loads((place / "h200-2026" / "repeats.json").read_text(encoding="utf-8"))["runs"]:
        first, again = (
            [read_json(path) for path in sorted((tmp_path / name / repeat["run"]).glob("evals/*/validation.json"))]
            for name in ("h200-hour", "h200-hour-repeat")
        )
        final = repeat["final"]
        assert (final["a"], final["b"]) == (first[-1]["values"]["loss"], again[-1]["values"]["loss"])
        assert repeat["bit_equal"] == ([_bits(row) for row in first] == [_bits(row) for row in again])


def _bits(evaluation):
    return evaluation["step"], evaluation["values"]["loss"], evaluation["weights_sha256"]
