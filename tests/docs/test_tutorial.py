"""The tutorial's study files, and its outputs that need no training, are what the program prints."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scaling.cli.main import app
from scaling.study.file import PACKAGED
from scaling.study.spec import StudySpec, load_study

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(yaml)?\n(.*?)^```", re.S | re.M)


def shown(after: str) -> list[str]:
    """The lines of the first block behind `after`."""
    block = FENCE.search(PAGE, PAGE.index(after))
    assert block is not None
    return block[2].splitlines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """my-work of the tutorial, with as much text as its own."""
    folder = tmp_path_factory.mktemp("my-work")
    (folder / "my-text").mkdir()
    for i in range(60):
        (folder / "my-text" / f"{i}.txt").write_text("a line of text\n" * 7_380)
    copied = (PACKAGED / "own-text.yaml").read_text().replace("name: own-text ", "name: my-study ", 1)
    (folder / "my-study.yaml").write_text(copied)
    return folder


def test_the_plan_is_what_the_command_prints(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for what depends on the machine."""
    monkeypatch.chdir(folder)
    result = CliRunner().invoke(app, ["plan", "my-study.yaml"])
    assert result.exit_code == 0, result.output
    printed, page = (
        [line.rstrip() for line in lines if " expected to take about " not in line]
        for lines in (result.stdout.splitlines(), shown("    scaling plan my-study.yaml"))
    )
    assert printed == page


def test_the_changes_of_step_7_are_of_the_runs_that_it_names(folder: Path) -> None:
    first = load_study(folder / "my-study.yaml", out=folder / "out")
    step = PAGE[PAGE.index("## 7.") : PAGE.index("## 8.")]
    seeds, overrides = (block[2] for block in FENCE.finditer(step) if block[1])
    text = (folder / "my-study.yaml").read_text()
    text = re.sub(r"  extra_seeds: .*\n", lambda _: seeds, text, count=1)
    (folder / "changed.yaml").write_text(text.replace("overrides:\n", f"overrides:\n{overrides}", 1))
    before, after = (hashes(study) for study in (first, load_study(folder / "changed.yaml", out=folder / "out")))
    new = [run_id for run_id, spec_hash in after.items() if before.get(run_id) != spec_hash]
    assert f"train: {len(new)} of {len(after)} runs to do, {len(after) - len(new)} done, 0 failed before" in step
    (changed,) = [run_id for run_id in new if run_id in before]
    (error,) = [line for line in step.splitlines() if line.startswith("error: ")]
    parts = [f"runs/{changed}: ", f"(spec_hash {before[changed]})", f"({after[changed]})"]
    assert all(part in error for part in parts), (error, parts)


def hashes(study: StudySpec) -> dict[str, str]:
    return {run.run_id: run.spec_hash for run in study.runs()}
