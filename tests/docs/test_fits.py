"""The example and the names of docs/fits.md are those of the program."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from analysis.fits.surface import Surface
from scaling.cli.main import app

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "fits.md").read_text(encoding="utf-8")


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The table of runs of the example, in the working directory."""
    monkeypatch.chdir(tmp_path)
    rng, law = np.random.default_rng(0), Surface(1.69, 406.4, 410.7, 0.34, 0.28)
    rows = ["arch,N,D,final loss"]
    for n in (1e7, 3e7, 1e8, 3e8):
        for d in (8 * n, 25 * n, 80 * n):
            rows += [f"{arch},{n},{d},{law.loss(n, d) * np.exp(rng.normal(0, 0.003))}" for arch in ("llama", "tnl")]
    Path("runs.csv").write_text("\n".join(rows))
    return "runs.csv"


def test_the_example_runs(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    block = re.search(r"^## In a notebook\n+```python\n(.*?)^```", PAGE, re.S | re.M)
    assert block is not None and table in block[1]
    exec(block[1], {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" 0.4")[0] for line in lines] == ["llama", "tnl"]  # and a, which is 0.45


def test_the_results_have_the_keys_that_are_named(table: str) -> None:
    printed = CliRunner().invoke(app, ["fit", "table", table, "--columns", "loss=final loss", "--json"]).stdout
    answer = json.loads(printed)
    named = PAGE.partition("`--json` prints one object")[2].partition("`--save")[0]
    keys = set(re.findall(r"`(\w+)`", named))
    assert set(answer) <= keys <= {*answer, *answer["results"][0]}
