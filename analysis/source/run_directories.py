"""A study as its runs left it: a directory for each of them, the corpus and the results beside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.source.base import BASELINE, Inputs, Provenance
from analysis.table_files import read_table
from data.files import MANIFEST, read_json, read_manifest, sha256
from scaling.study.schema import FORECAST

if TYPE_CHECKING:
    import pandas as pd

    from analysis.fits.settings import FitSettings
    from analysis.run_table import RunTable
    from scaling.study.run import RunSpec
    from scaling.study.spec import StudySpec

FORECAST_SCORES = "results/forecast-evals.parquet"
SCORE_COLUMNS = ("run_id", "step", "task", "metric", "value")
SCORES = "results/evals.parquet"  # of the study, whatever --set changed of the fit; `scaling eval study` writes it


class RunDirectories:
    """The study in its directory below `out`."""

    def __init__(self, study: StudySpec, runs: Sequence[RunSpec]) -> None:
        self.study, self.runs = study, runs
        self.directory = study.directory
        self._variants, self._others = self._besides()

    def _besides(self) -> tuple[list[str], list[str]]:
        """Runs on disk that are none of the study's: variants, which --set made of its runs and which stand in tables
        but in no fit, and others, as of an earlier grid, which are only counted. Forecast runs are neither."""
        own_ids = {run.run_id for run in self.runs}
        variants: list[str] = []
        others: list[str] = []
        for path in sorted((self.directory / "runs").glob("*/run.json")):
            if path.parent.name not in own_ids:
                spec = _read(path).get("spec") or {}
                if spec.get("role") != FORECAST:
                    (variants if spec.get("sets") else others).append(path.parent.name)
        return variants, others

    @property
    def _ids(self) -> list[str]:
        return [run.run_id for run in self.runs]

    @cached_property
    def inputs(self) -> Inputs:
        files: dict[str, str | None] = {}
        for name in (f"corpus/{MANIFEST}", SCORES):
            path = self.directory / name
            files[name] = sha256(path) if path.exists() else None
        for run_id in (*self._ids, *self._variants):
            directory = self.directory / "runs" / run_id
            paths = [directory / name for name in ("run.json", "metrics.jsonl", "status.json")]
            for path in [*paths, *sorted(directory.glob("*evals/*/validation.json"))]:
                files[str(path.relative_to(self.directory))] = sha256(path) if path.exists() else None
        return {"files": files, "others": self._others}

    def provenance(self) -> Provenance:
        records = [_read(self.directory / "runs" / run_id / "run.json") for run_id in self._ids]
        metrics = {run_id: self.directory / "runs" / run_id / "metrics.jsonl" for run_id in self._ids}
        versions: dict[str, set[str]] = {}
        for record in records:
            for package, version in record.get("versions", {}).items():
                versions.setdefault(package, set()).add(str(version))
        return {
            "versions": {package: sorted(numbers) for package, numbers in versions.items()},
            "git_commits": _each((record.get("git_commit") or "").strip() for record in records),
            "corpus_fingerprints": _each(record.get("corpus_fingerprint") for record in records),
            "spec_hashes": {run.run_id: run.spec_hash for run in self.runs},
            "metrics": {run_id: sha256(path) for run_id, path in metrics.items() if path.exists()},
        }

    def table(self, settings: FitSettings, validation_tokens: int, variants: bool = True) -> RunTable:
        """The study's runs and, with `variants`, those that --set made of them, to be fitted with `settings`."""
        stored = self._stored([*self._ids, *self._variants], settings, validation_tokens)
        return stored if variants else stored.without(self._variants)

    def _stored(self, ids: Sequence[str], settings: FitSettings, validation_tokens: int) -> RunTable:
        from analysis.run_table import RunTable
        from analysis.runs import load_tables
        from analysis.source.parquet import as_stored

        table = load_tables(self.directory, ids, settings.control, validation_tokens)
        runs, curves, evals = map(as_stored, (table.runs, table.curves, table.evals))
        return RunTable(runs, curves, evals, self.study.name, settings)

    @cached_property
    def forecast(self) -> RunTable | None:
        """The runs of the section `forecast` that have begun, which are in no other table; None where there are
        none."""
        from analysis.fits.settings import settings_of

        runs = self.directory / "runs"
        ids = [run.run_id for run in self.study.forecast_runs() if (runs / run.run_id / "run.json").exists()]
        settings = settings_of(self.study.fit, self.study.grid)
        return self._stored(ids, settings, self.study.evaluation.validation_tokens) if ids else None

    def scores(self) -> pd.DataFrame | None:
        """The scores of all evaluations, a row for each number; None where there are none."""
        return self._scores(SCORES)

    def forecast_scores(self) -> pd.DataFrame | None:
        return self._scores(FORECAST_SCORES)

    def _scores(self, name: str) -> pd.DataFrame | None:
        path = self.directory / name
        again = "`scaling eval study` writes it again"
        return read_table(path, again, SCORE_COLUMNS) if path.exists() else None

    def corpus(self) -> dict[str, Any] | None:
        return read_manifest(self.directory / "corpus", verify=False, partial=True)

    def baseline(self) -> dict[str, Any] | None:
        """The bigram model's loss, computed where it is not stored."""
        if (self.corpus() or {}).get("kind") != "corpus":
            return None
        from analysis.bigram import ensure_baseline

        context_length = max(run.context_length for run in self.runs)
        path = self.study.results / BASELINE
        return ensure_baseline(self.directory / "corpus", path, context_length, self.study.evaluation.validation_tokens)

    def contamination(self) -> dict[str, Any] | None:
        from analysis.contamination import FILE, stored

        corpus = self.corpus()
        return stored(self.study.results / FILE, corpus["fingerprint"]) if corpus else None

    def evaluations_page(self) -> str | None:
        """The address, from the report, of the page of the other evaluations."""
        return "../evals/index.html" if (self.directory / "evals" / "index.html").exists() else None


def _each(values: Iterable[Any]) -> list[str]:
    return sorted({str(value) for value in values if value})


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(read_json(path))
    except (OSError, ValueError):
        return {}
