"""The findings of a published study: no number that the tables, or the notes on how it was trained, do not have."""

import re

import pytest

from docs.generate import GENERATED, ROOT

NUMBER = re.compile(r"\d[\d,]*\.\d+|\d+(?=%)")
FOLDERS = sorted((ROOT / "analysis" / "studies").glob("*/FINDINGS.md"))


@pytest.mark.parametrize("path", FOLDERS, ids=lambda path: path.parent.name)
def test_every_number_of_the_prose_stands_in_a_table(path):
    text = path.read_text(encoding="utf-8")
    how_trained = ROOT / "docs" / "research" / "books.md"
    beside = [path.parent / "RESULTS.md", path.parent / "study.yaml", how_trained]
    known = "\n".join([*(part[0] for part in GENERATED.finditer(text)), *(file.read_text() for file in beside)])
    numbers = NUMBER.findall(GENERATED.sub("", text))
    assert len(numbers) > 5
    missing = [number for number in numbers if not re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", known)]
    assert not missing
