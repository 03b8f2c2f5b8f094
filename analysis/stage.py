"""The study's last stages: fit and report. Each does only what is missing.

Fits and report carry the hash of everything they were made from; while it is unchanged they are left alone.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from arch.errors import InputError
from data.files import MANIFEST, new_directory, read_json, read_manifest, sha256, write_bytes, write_json

if TYPE_CHECKING:
    from analysis.fits.settings import FitSettings
    from analysis.runs import Tables
    from scaling.study.run import RunSpec
    from scaling.study.spec import StudySpec

FIT_VERSION = 24  # of the method; a change makes every stored fit stale
REPORT_VERSION = 17  # of the page
SCORES = "results/evals.parquet"  # of the study, whatever --set changed of the fit; `scaling eval` writes it
TABLES = {"curves": "curves", "evals": "validation", "runs": "runs"}  # of Tables: its file; evals.parquet has all tasks


class Fitted(NamedTuple):
    """The fits, and whether they were made now (False: found up to date)."""

    fits: dict[str, Any]
    fresh: bool


class Reported(NamedTuple):
    """The page, whether it was made now, and why there are no pictures beside it (None: there are)."""

    path: Path
    fresh: bool
    no_pictures: str | None


def fit(study: StudySpec, runs: Sequence[RunSpec], force: bool = False) -> Fitted:
    """results/fits.json and the tables, from these runs' metrics and evaluations; with `force` even where they are."""
    results = study.results
    settings = _fit_settings(study)
    held_out = study.evaluation.validation_tokens
    inputs: dict[str, Any] = {"version": FIT_VERSION, "settings": settings.to_dict(), "validation_tokens": held_out}
    inputs["files"] = _input_files(study, runs)
    variants, others = _variants(study, runs)
    if others:
        inputs["others"] = others
    wanted = _hash(inputs)
    stored = _read(results / "fits.json")
    if not force and stored is not None and stored.get("inputs_hash") == wanted and _tables_exist(results):
        return Fitted(stored, False)

    from analysis.fits.grouping import grouped
    from analysis.fits.phases import resolved
    from analysis.fits.study import fit_study
    from analysis.fits.study_approaches import approaches_of_study
    from analysis.fits.study_points import StudyRuns
    from analysis.fits.variants import compare_variants
    from analysis.runs import load_tables
    from arch.registry import warnings_of

    ids = [*(run.run_id for run in runs), *variants]
    tables = load_tables(study.directory, ids, settings.control, held_out)
    settings = resolved(tables, settings)
    whole = grouped(tables, settings)
    metrics = {run.run_id: study.directory / "runs" / run.run_id / "metrics.jsonl" for run in runs}
    hashes = {run_id: sha256(path) for run_id, path in metrics.items() if path.exists()}
    fits = fit_study(whole, settings, hashes) | {"study": study.name, "inputs_hash": wanted}
    fits["left_out"] += [{"run_id": run, "why": "not of the study file's grid"} for run in others]
    fits["approaches"] = approaches_of_study(StudyRuns(study.name, whole, settings), fits)
    fits["variants"] = compare_variants(whole, settings.level)
    fits["downstream"] = _downstream(fits, whole, study.directory / SCORES)
    fits["warnings"] = warnings_of((run.size, run.config) for run in runs)
    if rate := ((_read(study.directory / "corpus" / MANIFEST) or {}).get("entropy_rate")):
        fits["entropy_rate"] = rate
    results.mkdir(parents=True, exist_ok=True)
    for name, file in TABLES.items():
        buffer = io.BytesIO()
        getattr(tables, name).to_parquet(buffer, index=False)
        write_bytes(results / f"{file}.parquet", buffer.getvalue(), kind="results")
    write_json(results / "fits.json", fits, kind="results")
    return Fitted(fits, True)


def _downstream(fits: dict[str, Any], tables: Tables, path: Path) -> dict[str, Any] | None:
    """The links of the other evaluations' scores to loss; None where there are none. Raises InputError for a table that
    cannot be read."""
    import pandas as pd

    from analysis.evals.scales import scales_of
    from analysis.fits.tasks import fit_tasks

    if not path.exists():
        return None
    try:
        evals = pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error}); `scaling eval` writes it again once removed") from None
    evals = evals[evals["task"] != "validation"]
    known = {task: found for task in evals["task"].unique() if (found := scales_of(task))}
    return None if evals.empty else fit_tasks(fits, tables, evals, known)


def baseline_of(study: StudySpec, runs: Sequence[RunSpec]) -> dict[str, Any]:
    """The bigram model's loss on the study's held-out text, computed where it is not stored."""
    from analysis.bigram import ensure_baseline

    context_length = max(run.context_length for run in runs)
    path = study.results / "bigram.json"
    return ensure_baseline(study.directory / "corpus", path, context_length, study.evaluation.validation_tokens)


def report(study: StudySpec, runs: Sequence[RunSpec], force: bool = False) -> Reported:
    """report/index.html, and report/figures/*.png where Chrome is installed, from results/. Fits first if need be.

    What is drawn already is left alone, but with `force`, and where only the browser for the pictures was missing.
    """
    fits, _ = fit(study, runs)
    directory, results = study.report, study.results
    corpus = read_manifest(study.directory / "corpus", verify=False, partial=True)
    baseline = baseline_of(study, runs) if corpus else None
    evaluations = "../evals/index.html" if (study.directory / "evals" / "index.html").exists() else None
    from analysis.contamination import FILE as CONTAMINATION
    from analysis.contamination import stored
    from analysis.evals.registry import texts_of

    held_against = stored(results / CONTAMINATION, corpus["fingerprint"]) if corpus else None
    with_texts = texts_of(study.evaluation.tasks or [], study.evaluation.settings)
    wanted = _hash(
        {
            "version": REPORT_VERSION,
            "contamination": [held_against, with_texts],
            "fits": fits["inputs_hash"],
            "corpus": corpus["fingerprint"] if corpus else None,
            "baseline": baseline,
            "evaluations": evaluations,
        }
    )
    from analysis.figures.png import NO_BROWSER, NO_PACKAGE, browser_found, write_pictures

    manifest = read_manifest(directory, verify=False)
    if not force and manifest is not None and manifest.get("inputs_hash") == wanted:
        missing = manifest["no_pictures"]
        if missing not in (NO_BROWSER, NO_PACKAGE) or not browser_found():
            return Reported(directory / "index.html", False, missing)

    from analysis.report.page import figures, page

    tables = read_tables(results)
    drawn = figures(fits, tables, baseline)
    content: dict[str, Any] = {"kind": "report", "study": study.name, "inputs_hash": wanted}
    with new_directory(directory, content, kind="report") as temporary:
        name = study.name + (f" ({', '.join(study.sets)})" if study.set_results else "")
        came = _provenance(study, runs, fits)
        html = page(name, fits, tables, drawn, baseline, corpus, came, evaluations, held_against, with_texts)
        (temporary / "index.html").write_text(html, encoding="utf-8")
        content["no_pictures"] = write_pictures(drawn, temporary / "figures")
    return Reported(directory / "index.html", True, content["no_pictures"])


def read_tables(results: Path) -> Tables:
    """The tables as `fit` stored them. Raises InputError for one that cannot be read."""
    import pandas as pd

    from analysis.runs import Tables

    found: dict[str, Any] = {}
    for name, file in TABLES.items():
        path = results / f"{file}.parquet"
        try:
            found[name] = pd.read_parquet(path)
        except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
            raise InputError(f"{path}: cannot be read ({error}); remove it and run `scaling fit` again") from None
    return Tables(**found)


def _fit_settings(study: StudySpec) -> FitSettings:
    from analysis.fits.settings import settings_of

    return settings_of(study.fit, study.grid)


def _variants(study: StudySpec, runs: Sequence[RunSpec]) -> tuple[list[str], list[str]]:
    """Runs on disk that are none of the study's: those that --set made of them, in the tables and in no fit, and
    others, as of an earlier grid, which are counted alone."""
    own = {run.run_id for run in runs}
    variants: list[str] = []
    others: list[str] = []
    for path in sorted((study.directory / "runs").glob("*/run.json")):
        if path.parent.name not in own:
            made = ((_read(path) or {}).get("spec") or {}).get("sets")
            (variants if made else others).append(path.parent.name)
    return variants, others


def _input_files(study: StudySpec, runs: Sequence[RunSpec]) -> dict[str, str | None]:
    """Every file a fit reads, by its path in the study: a hash of its content, null where it is not there."""
    corpus = study.directory / "corpus" / "manifest.json"
    scores = study.directory / SCORES
    found: dict[str, str | None] = {"corpus/manifest.json": sha256(corpus) if corpus.exists() else None}
    found[SCORES] = sha256(scores) if scores.exists() else None
    for run_id in (*(run.run_id for run in runs), *_variants(study, runs)[0]):
        directory = study.directory / "runs" / run_id
        files = [directory / name for name in ("run.json", "metrics.jsonl", "status.json")]
        for path in [*files, *sorted(directory.glob("*evals/*/validation.json"))]:
            found[str(path.relative_to(study.directory))] = sha256(path) if path.exists() else None
    return found


def _provenance(study: StudySpec, runs: Sequence[RunSpec], fits: dict[str, Any]) -> dict[str, str]:
    records = [_read(study.directory / "runs" / run.run_id / "run.json") or {} for run in runs]

    def all_of(key: str) -> str:
        return ", ".join(sorted({str(record[key]) for record in records if record.get(key)})) or "unknown"

    versions: dict[str, set[str]] = {}
    for record in records:
        for package, version in record.get("versions", {}).items():
            versions.setdefault(package, set()).add(str(version))
    return {
        "study file": str(study.path),
        "changes (--set)": ", ".join(study.sets) or "none",
        "git commit": all_of("git_commit"),
        "versions": ", ".join(f"{package} {'/'.join(sorted(found))}" for package, found in versions.items()),
        "corpus fingerprint": all_of("corpus_fingerprint"),
        "hash of the fit's inputs": str(fits["inputs_hash"]),
        "run spec hashes": ", ".join(f"{run.run_id} {run.spec_hash}" for run in runs),
    }


def _tables_exist(results: Path) -> bool:
    return all((results / f"{file}.parquet").exists() for file in TABLES.values())


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return dict(read_json(path))
    except (OSError, ValueError):
        return None


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
