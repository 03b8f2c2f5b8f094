"""The findings of a published study: no number that the tables, or the notes on how it was trained, do not have."""

import re

import pytest

from docs.generate import GENERATED, ROOT

NUMBER = re.compile(r"\d[\d,]*\.\d+|\d+(?=%)")
FOLDERS = sorted((ROOT / "analysis" / "studies").glob("*/FINDINGS.md"))


@pytest.mark.parametrize("path", FOLDERS, ids=lambda path: path.parent.name)
def test_every_number_of_the_prose_stands_in_a_table(path):
    text = path.read_text(encoding="utf-8")
    beside = [path.parent / "RESULTS.md", path.parent / "study.yaml", ROOT / "scaling" / "studies" / "NOTES.md"]
    known = "\n".join([*(found[0] for found in GENERATED.finditer(text)), *(one.read_text() for one in beside)])
    told = NUMBER.findall(GENERATED.sub("", text))
    assert len(told) > 5
    missing = [number for number in told if not re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", known)]
    assert not missing
