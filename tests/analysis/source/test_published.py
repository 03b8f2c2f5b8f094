"""The tables of a published study are those of its runs' directories."""

from pathlib import Path

import pandas as pd
import pytest

from analysis.fits.settings import FitSettings
from analysis.publish.write import TIMES, fill_inputs
from analysis.source.choose import Source, source_of
from analysis.source.published import Published
from analysis.table_files import read_table, table_bytes
from arch.errors import InputError
from data.files import read_json, write_json
from scaling.study.spec import StudySpec, load_study
from tests.analysis.fits.synthetic import write_evals, write_run

TOKENS = 65536  # held out, of the synthetic evaluations


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    """A run that failed, one that waits, seeds, a variant that --set made and a run of an earlier grid."""
    folder = tmp_path_factory.mktemp("published")
    (folder / "s.yaml").write_text(
        f"name: demo\nout: {folder}/out\ncorpus: {{source: 'stdlib:'}}\n"
        "grid: {archs: [tnl, llama], sizes: [14k, 25k], extra_seeds: {14k: [1]}}\n"
        f"training: {{n_tokens: 200000}}\nevaluation: {{validation_tokens: {TOKENS}}}\n"
    )
    spec = load_study(folder / "s.yaml")
    for run in spec.runs()[:-1]:
        failed = {"state": "failed", "reason": "loss is nan at step 12"} if run.run_id == "tnl-25k-c256-s0" else {}
        write_run(spec.directory, run.arch, run.size, 200_000, seed=run.seed, noise=0.01, **failed)
        write_evals(spec.directory, run.run_id, [20, 90], [3.1, 2.9])
    variant, _ = (write_run(spec.directory, "tnl", "14k", 200_000, seed=seed) for seed in (8, 9))
    path = spec.directory / "runs" / variant / "run.json"
    record = read_json(path)
    record["spec"]["sets"] = ["training.lr=1e-3"]
    write_json(path, record)
    fill_inputs(folder / "pub", spec, spec.runs())
    return spec


def published(study: StudySpec, *sets: str) -> tuple[StudySpec, Source]:
    spec = load_study(Path(study.path).parent / "pub", list(sets), study.out, published=True)
    return spec, source_of(spec, spec.runs())


def same(first_source: Source, other: Source, variants: bool = True) -> None:
    """Assert that both sources say the same. `other` is a folder, where runs that have not begun never will."""
    first, second = (source.table(FitSettings(), TOKENS, variants) for source in (first_source, other))
    pd.testing.assert_frame_equal(first.curves.drop(columns=list(TIMES)), second.curves, check_exact=True)
    runs = first.runs.assign(state=first.runs["state"].replace("waiting", "not trained"))
    pd.testing.assert_frame_equal(runs, second.runs, check_exact=True)
    pd.testing.assert_frame_equal(first.evals, second.evals, check_exact=True)
    assert first.title == second.title == "study demo"  # in messages, which fits.json holds too


def test_its_tables_and_hashes_are_those_of_the_directories(study: StudySpec) -> None:
    live, (spec, stored) = source_of(study, study.runs()), published(study)
    assert spec.directory == Path(study.out) / "demo-published" and isinstance(stored, Published)
    same(live, stored)
    same(live, stored, variants=False)
    assert live.inputs == stored.inputs and live.provenance() == stored.provenance()
    assert live.inputs["others"] == ["tnl-14k-c256-s9"] and len(live.provenance()["metrics"]) == 5
    assert sorted(set(live.table(FitSettings(), TOKENS).runs["state"])) == ["done", "failed", "waiting"]
    assert sorted(set(stored.table(FitSettings(), TOKENS).runs["state"])) == ["done", "failed", "not trained"]


def test_a_smaller_grid_leaves_the_same_runs(study: StudySpec) -> None:
    smaller = load_study(study.path, ["grid.sizes=[14k]"])
    live, (_, stored) = source_of(smaller, smaller.runs()), published(study, "grid.sizes=[14k]")
    table = stored.table(FitSettings(), TOKENS)
    assert set(table.runs["size"]) == {"14k"} and "tnl-14k-c256-s8" in set(table.curves["run_id"])
    assert live.inputs["others"] == stored.inputs["others"]
    assert live.inputs == stored.inputs and live.provenance() == stored.provenance()


def test_a_line_says_what_a_folder_cannot_give(study: StudySpec) -> None:
    _, stored = published(study)
    with pytest.raises(InputError, match=r"held-out losses over 65,536 tokens, not 1,024"):
        stored.table(FitSettings(), 1024)
    with pytest.raises(InputError, match=r"without each batch's bigram deviation"):
        stored.table(FitSettings(control="bigram"), TOKENS)
    _, larger = published(study, "grid.sizes=[14k, 25k, 55k]")
    with pytest.raises(InputError, match=r"pub: holds no run tnl-55k-c256-s0"):
        larger.table(FitSettings(), TOKENS)


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("training", "lr_law", "../rates.json", r"\.\./rates\.json does not lie beside the study file"),
        ("corpus", "tokenizer", "own/tokenizer.json", r"corpus\.tokenizer: is a file"),
    ],
)
def test_a_study_that_its_folder_could_not_name_is_refused(
    study: StudySpec, tmp_path: Path, section: str, key: str, value: str, message: str
) -> None:
    changed = study.model_copy(update={section: getattr(study, section).model_copy(update={key: value})})
    with pytest.raises(InputError, match=message):
        fill_inputs(tmp_path / "pub", changed, study.runs())


def test_a_table_in_a_folder_whose_name_is_no_utf_8(tmp_path) -> None:
    folder = tmp_path / "\udcff"
    folder.mkdir()
    frame = pd.DataFrame({"loss": [1.0, 2.0], "arch": ["a", "b"]})
    (folder / "a.parquet").write_bytes(table_bytes(frame))
    assert read_table(folder / "a.parquet").equals(frame)
