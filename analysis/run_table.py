"""The table of runs that fits, forecasts and reports read, whoever trained them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from analysis.fits.settings import FitSettings
from arch.amounts import flop
from arch.errors import InputError, choice
from data.units import loss_unit

CONVENTIONS = ("exact", "paper", "6nd")  # by which the cost of a run's token is known
AGREEING = {
    "corpus_fingerprint": "corpus",
    "target_tokens": "corpus.target_tokens",
    "tokenizer": "tokenizer",
    "context_length": "context length",
}
TWICE = "with recipe and seed of a run of another study"


@dataclass(frozen=True)
class Origin:
    """How a table of somebody else's came to be read. columns: {field: column}; derived: a field and what it was made
    from; six_nd: smallest, median and largest 6 N D / C, where the table has all three; n_rows: of the file;
    several_rows: whether a run has more than one; loss_unit: nats a token, or whatever it says; notes: remarks;
    keeps_copies: runs of the same numbers count each."""

    columns: Mapping[str, str]
    derived: Mapping[str, str]
    six_nd: tuple[float, float, float] | None
    n_rows: int
    several_rows: bool
    loss_unit: str
    notes: tuple[str, ...] = ()
    keeps_copies: bool = False


@dataclass(frozen=True)
class RunTable:
    """Runs as they were measured. Nothing in it is smoothed, selected or grouped: `analysis.fits.prepare` does that.

    runs: one row a run. `run_id`, `arch`, `size`, `seed`, `n_params_non_embedding` (N), `n_params` (with embeddings),
    `flops_per_token_<convention>` (training FLOP of a token), `recipe` (that of runs which differ by their seed alone),
    `trunk` (of a branch, the run that it was decayed from), `point` and `variant` (where it stands on the grid's axes,
    and what --set changed of it), `state`, `n_tokens` (D so far), `epochs` (how often it read its text),
    `warmup_tokens`, `batch_tokens`, `context_length`, `corpus_fingerprint`, `tokenizer`, `hardware`, `tokens_per_s`;
    `skipped_rows` and `skipped_why`: what of its files was left out.
    curves: one row a logged step. `run_id`, `step`, `n_tokens` (D), `flops_<convention>` (C), `loss` (of one batch, in
    nats a token), `phase` of the learning rate (scaling.study.schedule), `warmup` (bool), and, where fits ask for it,
    `difficulty` of the batch for a bigram model.
    evals: one row an evaluated checkpoint. The same columns, `loss` over the held-out text, of a mixture `loss:NAME`
    over that of each source too, and `phase`.
    name: of the study or of the file. settings: those that it is fitted with, where nobody asks for others.
    dropped: by reason, runs that are in none of the three, or rows of somebody else's file.
    origin: of such a file, how it was read. Its runs have `run`, their name in it, N, `size`, `recipe`, `trunk`, `cell`
    and `budget`; its curves their own `flops_<convention>`, `row`, and `unique_tokens` where they are known.
    """

    runs: pd.DataFrame
    curves: pd.DataFrame
    evals: pd.DataFrame
    name: str = ""
    settings: FitSettings = field(default_factory=FitSettings)
    dropped: Mapping[str, int] = field(default_factory=dict)
    origin: Origin | None = None

    @property
    def title(self) -> str:
        """What messages call it."""
        return f"study {self.name}" if self.origin is None else self.name

    @property
    def loss_unit(self) -> str:
        return loss_unit(self.runs["tokenizer"]) if self.origin is None else self.origin.loss_unit

    def without(self, run_ids: Collection[str]) -> RunTable:
        """The table without the rows of these runs."""
        if not run_ids:
            return self
        frames = (self.runs, self.curves, self.evals)
        runs, curves, evals = (rows[~rows["run_id"].isin(list(run_ids))].reset_index(drop=True) for rows in frames)
        return replace(self, runs=runs, curves=curves, evals=evals)

    def under(self, convention: str | None, **settings: Any) -> RunTable:
        """The table with C under another convention (None: its own) and other settings; a stated range stays where it
        was. Raises InputError for a convention that runs are not counted by."""
        if convention is not None:
            if convention not in CONVENTIONS:
                raise InputError(f"--convention: {convention!r}{choice(convention, list(CONVENTIONS))}")
            settings |= {"flops": convention, "range_flops": self.settings.range_convention}
        return replace(self, settings=self.settings.model_copy(update=settings))


def pool(studies: Sequence[RunTable]) -> RunTable:
    """One table of the runs of all studies, each run named `study/run`; a run that is in two of them counts once.

    Raises InputError, with what differs, where they do not share corpus, tokenizer, context length and fit settings.
    """
    for study in studies:
        _refuse_different_texts([study])
    if len(studies) == 1:
        return studies[0]
    names = [study.name for study in studies]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"two studies are called {twice[0]}: give each once, or rename one")
    _refuse_different_texts(studies)
    first = studies[0]
    for other in studies[1:]:
        mine, theirs = first.settings.to_dict(), other.settings.to_dict()
        if differ := [key for key in mine if mine[key] != theirs[key] and key != "range"]:
            keys = {key: "grid.nuisance" if key == "nuisance" else f"fit.{key}" for key in differ}
            values = ", ".join(f"{keys[key]} ({mine[key]} and {theirs[key]})" for key in differ)
            raise InputError(f"studies {first.name} and {other.name} differ in {values}: give both the same by --set")
    runs, curves, evals = (
        _joined([_named(getattr(study, frame), study.name) for study in studies])
        for frame in ("runs", "curves", "evals")
    )
    settings, gone = first.settings.model_copy(update={"range": _ranges(studies)}), _in_another(studies)
    whole = RunTable(runs, curves, evals, " + ".join(names), settings).without(gone)
    return replace(whole, dropped={TWICE: len(gone)} if gone else {})


def _named(part: pd.DataFrame, study: str) -> pd.DataFrame:
    """Runs, and the trunks that they were branched from, as `study/run`."""
    named = part.assign(run_id=f"{study}/" + part["run_id"].astype(str))
    if "trunk" in part:
        named["trunk"] = [f"{study}/{trunk}" if trunk else trunk for trunk in part["trunk"].fillna("")]
    return named


def _joined(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    whole = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    return whole.fillna({"trunk": ""}) if "trunk" in whole else whole  # of one study and not of the other


def _in_another(studies: Sequence[RunTable]) -> set[str]:
    """Runs that are done, as `study/run`, of the recipe, seed and trunk of one of a study that comes first."""
    gone: set[str] = set()
    seen: set[tuple[str, str, str]] = set()
    for study in studies:
        mine = {}
        for row in study.runs.itertuples():
            if row.state == "done":
                branched = str(getattr(row, "trunk", None) or "")
                trunk = "" if branched == str(row.run_id) else branched
                mine[f"{study.name}/{row.run_id}"] = (str(row.recipe), str(row.seed), trunk)
        gone |= {name for name, key in mine.items() if key in seen}
        seen |= set(mine.values())
    return gone


def _ranges(studies: Sequence[RunTable]) -> dict[str, list[float]]:
    """The stated range of every architecture. Raises InputError where two studies state two."""
    ranges: dict[str, list[float]] = {}
    for study in studies:
        for arch, ends in study.settings.range.items():
            if ranges.setdefault(arch, ends) != ends:
                both = " and ".join(f"{flop(low, 4)} to {flop(high, 4)}" for low, high in (ranges[arch], ends))
                names = " and ".join(study.name for study in studies)
                raise InputError(
                    f"studies {names} differ in fit.range of {arch} ({both} FLOP): "
                    f"give all the same by --set fit.range.{arch}=[LOW,HIGH]"
                )
    return ranges


def _refuse_different_texts(studies: Sequence[RunTable]) -> None:
    """Raise InputError where losses of the studies' runs cannot be compared."""
    done = pd.concat([_texts_of(study).assign(study=study.name) for study in studies], ignore_index=True)
    for key, word in AGREEING.items():
        # a grid that varies the context has one for each of its points
        points = done["point"] if key == "context_length" else pd.Series("", index=done.index)
        for _, mine in done.groupby(points):
            values = mine[["study", key]].dropna().drop_duplicates(key)
            if len(values) < 2:
                continue
            both = " and ".join(f"{str(value)[:12]} in {name}" for name, value in values.itertuples(index=False))
            raise InputError(f"the runs do not share one {word} ({both}): losses of one fit must be comparable")


def _texts_of(study: RunTable) -> pd.DataFrame:
    """What the runs that are done read, a row a run."""
    done = study.runs.loc[(study.runs["state"] == "done") & (study.runs["variant"] == "")]
    texts = done.reindex(columns=[*AGREEING, "point"]).astype(object)
    return texts.assign(target_tokens=texts["target_tokens"].fillna("none"))
