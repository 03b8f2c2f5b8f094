"""The findings of a published study: no number that the tables, or the notes on how it was trained, do not have."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from docs.generate import GENERATED, ROOT
from scaling.cli.main import app

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


def test_repeats_are_what_the_bundles_say(monkeypatch):
    """As FINDINGS' command compares them; the bundles grow, and a file that is kept beside them would not follow."""
    monkeypatch.chdir(ROOT)
    place = Path("analysis/studies")
    bundles = [str(place / "bundles" / f"{name}.tar.xz") for name in ("h200-hour", "h200-hour-repeat")]
    result = CliRunner().invoke(app, ["bundle", "compare", *bundles, "--json"])
    published = (place / "h200-2026" / "repeats.json").read_text(encoding="utf-8")
    assert result.exit_code == 0 and json.loads(result.stdout) == json.loads(published)
