"""What works on a study that came in a bundle, and what says that it needs weights or text."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis.bigram import ensure_baseline
from analysis.runs import load_tables
from scaling.cli.corpus import data_stage
from scaling.cli.training import check_trunks, prepare_runs

from .conftest import Made
from .small import RUNS, files_of, finish, line_of, request_of, scaling, write_study


@pytest.fixture(scope="module")
def there(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the bundle was unpacked."""
    out = tmp_path_factory.mktemp("there") / "out"
    assert scaling("bundle", "unpack", made.bundle, "--out", out).exit_code == 0
    return out


@pytest.fixture
def without_text(made: Made) -> Iterator[None]:
    """The text that the corpus is made of is on another machine."""
    away = made.text.with_suffix(".away")
    made.text.rename(away)
    yield
    away.rename(made.text)


def test_what_fits_and_reports_take_of_the_text_is_there_without_it(
    made: Made, there: Path, without_text: None
) -> None:
    homes = there / "tiny", made.home
    curves = [load_tables(home, RUNS, control="bigram").curves for home in homes]
    assert curves[0].equals(curves[1]) and curves[0]["difficulty"].std() > 0
    baselines = [ensure_baseline(home / "corpus", home / "results/bigram.json", 64, 256) for home in homes]
    assert baselines[0] == baselines[1] and baselines[0]["loss"] > 0
    again = scaling("train", made.study, "--out", there)
    assert again.exit_code == 0 and "train: 0 of 2 runs to do" in again.stdout, (again.output, again.exception)


def test_what_needs_weights_says_where_they_are(made: Made, there: Path, tmp_path: Path) -> None:
    run = there / "tiny/runs" / RUNS[0]
    message = f"the weights of {RUNS[0]} were left out by a bundle"
    for words in (("generate", run, "x"), ("export", run, tmp_path / "x"), ("inspect", run)):
        assert message in line_of(scaling(*words))
    assert message in line_of(scaling("generate", run / "checkpoints/00000030", "x"))
    before = files_of(there)
    result = scaling("eval", "study", made.study, "--out", there, "--set", "evaluation.validation_tokens=512")
    assert result.exit_code == 1 and "6 of 6 evaluations are not done" in result.stderr
    assert f"failed: {RUNS[1]}/00000001 validation and 5 more: its weights were left out by a bundle" in result.stderr
    shutil.rmtree(there)
    for name, content in before.items():  # the table has the current results alone
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_bytes(content)


def test_the_text_is_made_again_only_as_the_same_corpus(made: Made, there: Path, tmp_path: Path) -> None:
    home = tmp_path / "out/tiny"
    shutil.copytree(there / "tiny", home)
    study = write_study(tmp_path, made.text, sizes="[6k, 14k, 25k]")
    manifest = (home / "corpus/manifest.json").read_bytes()
    corpus = data_stage(request_of(study, tmp_path / "out"), text=False)
    assert corpus.is_left_out
    whole = data_stage(request_of(study, tmp_path / "out"))
    assert not whole.is_left_out and (home / "corpus/manifest.json").read_bytes() == manifest
    assert not (home / "corpus/left-out.json").exists() and len(whole.train) == whole.n_tokens("train")
    shutil.rmtree(home)
    shutil.copytree(there / "tiny", home)
    text = made.text.read_text()
    other = tmp_path / "text.jsonl"
    other.write_text(text + json.dumps({"text": "and one more document"}) + "\n")
    before = files_of(home)
    line = line_of(scaling("data", write_study(tmp_path, other), "--out", tmp_path / "out"))
    assert "the source gives another corpus here" in line and files_of(home) == before


def test_without_the_text_a_further_run_is_refused_in_one_line(
    made: Made, there: Path, without_text: None, tmp_path: Path
) -> None:
    study = write_study(tmp_path, made.text, sizes="[6k, 14k, 25k]")
    for words in (["run"], ["train"], ["train", "--dry-run"]):
        line = line_of(scaling(words[0], study, "--out", there, *words[1:]))
        assert "the corpus' text was left out by a bundle, and cannot be made again here" in line
        assert str(made.text) in line and "\n" not in line


def test_a_branch_of_a_bundled_trunk_says_so(made: Made, tmp_path: Path) -> None:
    study = write_study(tmp_path, made.text, sizes="[6k]", n_tokens="null")
    study.write_text(study.read_text().replace("n_tokens: null", "schedule: wsd, branches: [5120, 7680]"))
    out = tmp_path / "out"
    request = request_of(study, out)
    prepare_runs(request, data_stage(request))
    trunk = next(run for run in request.runs if run.branches)
    finish(request, trunk)
    bundle = tmp_path / "trunk.tar.xz"
    assert scaling("bundle", "pack", study, "--out", out, "--to", bundle).exit_code == 0
    assert scaling("bundle", "unpack", bundle, "--out", tmp_path / "there").exit_code == 0
    with pytest.raises(Exception, match=f"of its trunk, and the weights of {trunk.run_id} were left out by a bundle"):
        check_trunks(request_of(study, tmp_path / "there"))
