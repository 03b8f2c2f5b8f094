"""study.ipynb, on the quickstart cut down to a few runs."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from analysis.fits.study import fit_study
from analysis.fits.study_fits import read_fits, stored_settings
from analysis.publish.write import publish
from analysis.runs import load_tables
from analysis.source.read import read_runs
from arch.errors import InputError
from scaling.cli.main import main
from scaling.study.file import find_study
from scaling.study.spec import load_study
from tests.analysis.notebooks.execute import execute, plots_of, text_of
from tests.commands import in_this_process

TOKENS = 80_000


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the quickstart with two runs of few tokens, trained here; its settings are otherwise its own,
    but for the text, the range of compute, which so few tokens do not reach, and one run at a time."""
    folder = tmp_path_factory.mktemp("quickstart")
    study = yaml.safe_load(find_study("four-architectures").read_text())
    study["grid"] |= {"archs": ["tnl"], "sizes": ["6k", "14k"], "extra_seeds": {}}
    by_size = study["overrides"]["by_size"]
    study["overrides"] = {"by_size": {size: by_size[size] | {"n_tokens": TOKENS} for size in study["grid"]["sizes"]}}
    del study["fit"]["range"]
    study["corpus"]["source"], study["training"]["n_checkpoints"] = "synthetic:0:2000000", 2
    study["evaluation"]["validation_tokens"] = 8192
    study["jobs"]["parallel"] = 1  # a second process takes longer to start than it saves
    (folder / "four-architectures.yaml").write_text(yaml.safe_dump(study))
    done = in_this_process(main, "run", folder / "four-architectures.yaml", "--out", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "four-architectures"


def test_notebook_runs_on_the_quickstart(quickstart: Path, tmp_path: Path) -> None:
    outputs = execute("study", tmp_path, STUDY_DIR=str(quickstart))
    exponent = read_fits(quickstart / "results" / "fits.json").envelope("tnl").law("L_opt").exponent.value
    for text in (f"{exponent:.3f}", "tnl-14k-c256-s0", "TNL alone was fitted"):
        assert text in text_of(outputs), text
    assert len(plots_of(outputs)) == 2


def test_a_published_study_is_opened_as_its_directory_is(quickstart: Path, tmp_path: Path) -> None:
    study = load_study(quickstart.parent / "four-architectures.yaml", out=quickstart.parent)
    publish(study, study.runs(), tmp_path / "folder")
    opened, published = read_runs(quickstart), read_runs(tmp_path / "folder")
    assert published.settings == opened.settings
    assert set(published.runs["run_id"]) == set(opened.runs["run_id"])
    stored = read_fits(quickstart / "results" / "fits.json")
    again = fit_study(published, approaches=())
    assert again.envelope("tnl").laws == stored.envelope("tnl").laws
    (tmp_path / "folder" / "fits.json").write_text("{}")
    with pytest.raises(InputError, match=r"fits.json: cannot be read .* where it was published"):
        read_runs(tmp_path / "folder")


def test_tables_come_with_what_the_stored_fit_needs(quickstart: Path) -> None:
    settings, stored = stored_settings(quickstart), read_fits(quickstart / "results" / "fits.json")
    assert settings.control == "bigram"
    tables = load_tables(quickstart)
    assert tables.curves["difficulty"].abs().max() > 0.01
    assert fit_study(tables, approaches=()).envelope("tnl").laws == stored.envelope("tnl").laws
    with pytest.raises(InputError, match=r'load_tables.*control="bigram"'):
        fit_study(replace(load_tables(quickstart, control="none"), settings=settings))


def test_the_report_tells_how_and_on_what_the_runs_were_trained(quickstart: Path) -> None:
    runs = load_tables(quickstart, control="none").runs
    assert runs["started"].notna().all() and runs["hardware"].str.startswith("1 x ").all()
    page = (quickstart / "report" / "index.html").read_text()
    for text in (runs["hardware"].iloc[0], runs["started"].iloc[0], "AdamW, betas [0.9, 0.95]", "<td>1,024</td>"):
        assert text in page, text
