"""The studies that people copy: each can be planned, and each of its keys stands in its file with a reason."""

import pytest
from typer.testing import CliRunner

from scaling.cli.main import app
from scaling.study.find import PACKAGED

STUDIES = sorted(path.stem for path in PACKAGED.glob("*.yaml"))


@pytest.mark.parametrize("name", STUDIES)
def test_a_packaged_study_plans(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["plan", name, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert f'"study": "{name}"' in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["own-text", "one-gpu", "cluster"])
def test_studies_to_copy_explain_their_lines(name):
    lines = (PACKAGED / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    plain = [line for line in lines if line.strip() and "#" not in line]
    sections = [line for line in plain if line.endswith(":") or line.startswith("  by_size")]
    assert len(plain) - len(sections) <= len(lines) // 5, f"{name}: say what these are for: {plain}"
