"""A study in the folder that it was published in: its tables and its facts, without runs, text or weights."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from analysis.source.base import AGAIN, BASELINE, NOT_TRAINED, WAITING, Inputs, Provenance
from analysis.table_files import read_table
from arch.errors import InputError
from data.files import MANIFEST, is_plain, listed, read_json, sha256

if TYPE_CHECKING:
    import pandas as pd

    from analysis.fits.settings import FitSettings
    from analysis.run_table import RunTable

KIND, VERSION = "published-study", 1
CURVES, RUNS, EVALS, SCORES = "curves.parquet", "runs.parquet", "validation.parquet", "evals.parquet"
FORECAST = ("forecast-curves.parquet", "forecast-runs.parquet", "forecast-validation.parquet")  # of its forecast runs
FORECAST_SCORES = "forecast-evals.parquet"
CORPUS, CONTAMINATION, PROVENANCE = "corpus.json", "contamination.json", "provenance.json"


class Published:
    """The folder at `folder`, with the runs `ids` (None: all). Raises InputError where it is no published study of this
    version, or a file that fits are made from is missing or differs from what was published."""

    def __init__(self, folder: Path, ids: list[str] | None = None) -> None:
        self.folder = folder
        self.manifest = read_published(folder)
        self._asked = ids
        self._stored = self._json(PROVENANCE)
        try:
            runs, files = self._stored["runs"], self._stored["inputs"]["files"]
            _ = self.validation_tokens, *map(dict, (runs["spec_hashes"], runs["metrics"], files))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{folder / PROVENANCE}: is damaged ({error!r}); {AGAIN}") from None

    def has(self, name: str) -> bool:
        return name in self.manifest["inputs"]

    def check_has(self, name: str) -> None:
        """Raise InputError where a file that is there was not published with the folder."""
        if not self.has(name):
            raise InputError(f"{self.folder / name}: was not published with this folder: remove it")

    @property
    def validation_tokens(self) -> int:
        """The number of tokens over which its held-out losses are."""
        return int(self._stored["validation_tokens"])

    @cached_property
    def inputs(self) -> Inputs:
        stored, gone = self._stored["inputs"], tuple(f"runs/{run_id}/" for run_id in self._dropped)
        files = {name: digest for name, digest in stored["files"].items() if not name.startswith(gone)}
        begun = [run_id for run_id in self._dropped if stored["files"].get(f"runs/{run_id}/run.json")]
        return {"files": files, "others": sorted([*stored["others"], *begun])}

    def provenance(self) -> Provenance:
        stored = self._stored["runs"]
        kept = {
            key: {run_id: digest for run_id, digest in stored[key].items() if run_id not in self._dropped}
            for key in ("spec_hashes", "metrics")
        }
        return cast(Provenance, stored | kept)

    def table(self, settings: FitSettings, validation_tokens: int, variants: bool = True) -> RunTable:
        from analysis.run_table import RunTable

        if validation_tokens != (stored := self.validation_tokens):
            raise InputError(
                f"{self.folder}: was published with held-out losses over {stored:,} tokens, not {validation_tokens:,}"
            )
        curves = read_table(self.folder / CURVES, AGAIN)
        if settings.control == "bigram" and "difficulty" not in curves and len(curves):
            raise InputError(
                f"{self.folder}: was published without each batch's bigram deviation: leave out fit.control"
            )
        if settings.control != "bigram" and "difficulty" in curves:
            curves = curves.drop(columns="difficulty")
        evals = read_table(self.folder / EVALS, AGAIN)
        gone = set(self._dropped)
        if not variants:
            gone |= set(self._runs.loc[self._runs["variant"] != "", "run_id"])
        return RunTable(self._runs, curves, evals, self.manifest["study"], settings).without(gone)

    @cached_property
    def forecast(self) -> RunTable | None:
        from analysis.run_table import RunTable

        if not self.has(FORECAST[1]):
            return None
        curves, runs, evals = (self.folder / name for name in FORECAST)
        return RunTable(_runs_of(runs), read_table(curves, AGAIN), read_table(evals, AGAIN), self.manifest["study"])

    def scores(self) -> pd.DataFrame | None:
        return read_table(self.folder / SCORES, AGAIN) if self.has(SCORES) else None

    def corpus(self) -> dict[str, Any] | None:
        return self._json(CORPUS) if self.has(CORPUS) else None

    def baseline(self) -> dict[str, Any] | None:
        return self._json(BASELINE) if self.has(BASELINE) else None

    def contamination(self) -> dict[str, Any] | None:
        return self._json(CONTAMINATION) if self.has(CONTAMINATION) else None

    def evaluations_page(self) -> str | None:
        return None

    @cached_property
    def _runs(self) -> pd.DataFrame:
        runs = _runs_of(self.folder / RUNS)
        known = set(runs["run_id"])
        if missing := [run_id for run_id in self._asked or () if run_id not in known]:
            raise InputError(f"{self.folder}: holds no run {missing[0]}, which the grid asks for now")
        return runs

    @cached_property
    def _dropped(self) -> list[str]:
        """The study's own runs that a grid changed with --set no longer contains."""
        if self._asked is None or set(self._asked) == set(self._stored["runs"]["spec_hashes"]):
            return []
        own_ids = self._runs.loc[self._runs["variant"] == "", "run_id"].astype(str)
        return [run_id for run_id in own_ids if run_id not in set(self._asked)]

    def _json(self, name: str) -> dict[str, Any]:
        try:
            return dict(read_json(self.folder / name))
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{self.folder / name}: cannot be read ({error}); {AGAIN}") from None


def _runs_of(path: Path) -> pd.DataFrame:
    runs = read_table(path, AGAIN)
    return runs.assign(state=runs["state"].replace(WAITING, NOT_TRAINED))


def read_published(folder: Path) -> dict[str, Any]:
    """The folder's manifest, after a check that the files that fits are made from are there as they were published;
    files that follow from them may be missing. Raises InputError."""
    try:
        manifest = read_json(folder / MANIFEST)
    except FileNotFoundError:
        raise InputError(f"{folder}: is no published study ({MANIFEST} is missing)") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{folder / MANIFEST}: cannot be read ({error}); {AGAIN}") from None
    if not isinstance(manifest, dict) or manifest.get("kind") != KIND:
        raise InputError(f"{folder}: is no published study ({MANIFEST} is of something else)")
    if manifest.get("version") != VERSION:
        raise InputError(
            f"{folder}: is a published study of version {manifest.get('version')}, this program reads {VERSION}: take "
            f"the program that wrote it ({manifest.get('made_with', {}).get('linear-scaling', 'unknown')})"
        )
    try:
        if not isinstance(manifest["study"], str) or not isinstance(manifest["made_with"], dict):
            raise TypeError("study or made_with")
        for name in manifest["inputs"]:
            if is_plain(name) and not (folder / name).exists():
                raise InputError(f"{folder}: {name} is missing; {AGAIN}")
            if sha256(listed(folder, name)) != manifest["files"][name]["sha256"]:
                raise InputError(f"{folder}: {name} differs from its checksum; {AGAIN}")
        if missing := {PROVENANCE, CURVES, RUNS, EVALS} - set(manifest["inputs"]):
            raise InputError(f"{folder / MANIFEST}: names no {min(missing)}; {AGAIN}")
    except InputError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{folder / MANIFEST}: is damaged ({error!r}); {AGAIN}") from None
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be read ({error.strerror}); {AGAIN}") from None
    return manifest
