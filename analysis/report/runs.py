"""What the study was made of: its runs with their costs, checkpoints, corpus and evaluation sets.

A column of the table of runs is a line of COLUMNS, which raises REPORT_VERSION (analysis/stage.py), so that reports are
drawn again. One of a value that the tables lack also has its value in analysis/runs.py (`_RUN_COLUMNS` and what fills
them), which raises FIT_VERSION, so that they are made again. A published study keeps the tables that it has: a cell of
what these lack is empty (`getattr(row.run, NAME, None)`), and a column that is empty in every row is not shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.costs import Cost
from analysis.figures.axes import power_of_ten
from analysis.fits.losses import RunCurves
from analysis.fits.prepare import VARIANT
from analysis.fits.study_fits import StudyFits
from analysis.pages.cells import shown
from analysis.report.section import Section, Table, pairs
from analysis.report.words import named
from analysis.run_table import RunTable
from analysis.source.base import Provenance
from arch.amounts import count, counted, flop
from data.clean.summary import headline
from data.settings import shown_source
from data.units import loss_unit

BRANCHES = "Of a branch, tokens and epochs are those of its whole path, FLOP and minutes of what it trained itself."
FEW = 4  # values of a setting that are listed one by one
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


@dataclass(frozen=True)
class RunRow:
    """What the table of runs has of one: its row of the table that the fits read; the last loss of its curve; the best
    loss of its checkpoints and the bits a byte of that; its costs; why the fits do not use it ("": they do)."""

    run: Any
    last_loss: float | None
    held_out: float | None
    bits_per_byte: float | None
    cost: Cost | None
    unused: str


COLUMNS: dict[str, Callable[[RunRow], str]] = {
    "run": lambda row: row.run.run_id,
    "state": lambda row: row.run.state,
    "parameters (non-embedding)": lambda row: shown(row.run.n_params_non_embedding, ",.0f"),
    "tokens": lambda row: shown(row.run.n_tokens, ",.0f"),
    "epochs": lambda row: shown(row.run.epochs, ".2f"),
    "learning rate": lambda row: shown(row.run.lr, "g"),
    "last loss (of the fits)": lambda row: shown(row.last_loss, ".4f"),
    "best held-out loss": lambda row: shown(row.held_out, ".4f"),
    "bits/byte": lambda row: shown(row.bits_per_byte, ".4f"),
    "FLOP (exact)": lambda row: shown(row.cost.flops_exact or None, ".3g") if row.cost else "",
    "planned (min)": lambda row: shown(row.cost.planned_minutes, ",.2f") if row.cost and row.cost.tokens else "",
    "spent (min)": lambda row: shown(row.cost.spent_minutes, ",.2f") if row.cost else "",
    "tokens/s": lambda row: shown(row.run.tokens_per_s, ",.0f"),
    "MFU (exact)": lambda row: shown(row.cost.mfu_exact, ".1%") if row.cost else "",
    "peak memory (GB)": lambda row: shown(getattr(row.run, "peak_memory_gb", None), ".2f"),
    "why": lambda row: "" if pd.isna(row.run.reason) else str(row.run.reason),
    "checked": lambda row: "no" if getattr(row.run, "checked", None) == "no" else "",
    "not in the fits": lambda row: row.unused,
    "rows left out": lambda row: row.run.skipped_why if row.run.skipped_rows else "",
}


def runs_section(fits: StudyFits, tables: RunTable, costs: Sequence[Cost]) -> Section:
    training = pairs("training", training_facts(tables.runs))
    table = Table("runs", run_rows(fits, tables, costs), good=("state", "done"))
    notes = [*branch_notes(costs, tables.runs), *cost_notes(costs)]
    return Section("Runs, and what their training cost", tables=[training, table], notes=notes)


def run_rows(fits: StudyFits, tables: RunTable, costs: Sequence[Cost]) -> list[dict[str, str]]:
    """A row a run, its cells by COLUMNS, but for columns that no run has anything of."""
    best = tables.evals.groupby("run_id")[["loss", "bits_per_byte"]].min().to_dict("index")
    unused = {run["run_id"]: run["why"] for run in fits.left_out}
    curves, cost_of = RunCurves(tables, fits.settings), {cost.run_id: cost for cost in costs}
    rows = []
    run: Any
    for run in tables.runs.itertuples():
        loss, held_out = curves.of(run.run_id).loss, best.get(run.run_id, {})
        last = float(loss[-1]) if len(loss) else None
        losses = (last, held_out.get("loss"), held_out.get("bits_per_byte"))
        row = RunRow(run, *losses, cost_of.get(run.run_id), unused.get(run.run_id, ""))
        rows.append({name: cell(row) for name, cell in COLUMNS.items()})
    return [{name: row[name] for name in row if any(other[name] for other in rows)} for row in rows]


def checkpoints_table(tables: RunTable) -> Table:
    """A row an evaluated checkpoint."""
    unit, rows = loss_unit(tables.runs["tokenizer"]), []
    row: Any
    for row in tables.evals.itertuples():
        cells = {"run": str(row.run_id), "step": str(row.step)}
        cells |= {"tokens": str(row.n_tokens), "C (FLOP, exact)": shown(row.flops_exact, ".6g")}
        rows.append(cells | {f"loss ({unit})": shown(row.loss, ".4f"), "bits/byte": shown(row.bits_per_byte, ".4f")})
    return Table("checkpoints", rows, is_file=True)


def training_facts(runs: pd.DataFrame) -> dict[str, str]:
    """How the runs were trained, where and when: what all share, or each of what differs."""
    days = sorted(runs["started"].dropna().unique())
    return {
        "batch (tokens)": _each(runs["batch_tokens"], ",.0f"),
        "context (tokens)": _each(runs["context_length"], ",.0f"),
        "optimizer": _each(runs["optimizer"]),
        "warm-up (tokens)": _each(runs["warmup_tokens"], ",.0f"),
        "precision": _each(runs["precision"]),
        "hardware": _each(runs["hardware"]) or "not recorded",
        "training began": " to ".join(dict.fromkeys([days[0], days[-1]])) if days else "not recorded",
    }


def provenance_facts(fits: StudyFits, came: Provenance) -> dict[str, str]:
    """What made the runs, and what the fits were made from."""
    return {
        "git commit": ", ".join(came["git_commits"]) or "unknown",
        "versions": ", ".join(f"{package} {'/'.join(numbers)}" for package, numbers in came["versions"].items()),
        "corpus fingerprint": ", ".join(came["corpus_fingerprints"]) or "unknown",
        "hash of the fit's inputs": fits.inputs_hash,
    }


def _each(values: pd.Series[Any], form: str = "") -> str:
    """The different values; of more than FEW that differ in numbers alone, the smallest and the largest of each."""
    texts = [format(value, form) for value in values.dropna().unique()]
    if len(texts) <= FEW or len({NUMBER.sub("", text) for text in texts}) > 1:
        return "; ".join(texts)
    columns = (sorted(set(column), key=_value) for column in zip(*map(NUMBER.findall, texts), strict=True))
    ranges = iter([" to ".join(dict.fromkeys([column[0], column[-1]])) for column in columns])
    return NUMBER.sub(lambda _: next(ranges), texts[0])


def _value(number: str) -> float:
    return float(number.replace(",", ""))


def branch_notes(costs: Sequence[Cost], runs: pd.DataFrame) -> list[str]:
    """What is counted from the trunk's beginning, where `runs` are branches; costs may be of others too."""
    tokens = dict(zip(runs["run_id"], runs["n_tokens"], strict=True))
    return [BRANCHES] if any(0 < cost.tokens < tokens.get(cost.run_id, 0) for cost in costs) else []


def cost_notes(costs: Sequence[Cost]) -> list[str]:
    """The sums of what was planned and spent, and how both are counted."""
    begun = [cost for cost in costs if cost.tokens]
    if not begun:
        return []
    larger = [cost for cost in begun if cost.is_forecast]
    of_forecast = f", {_flop(larger)} of them of its forecast" if larger else ""
    notes = [
        f"All runs of the study together: {_flop(begun)} FLOP by the convention exact{of_forecast}. "
        f"Runs of a sweep and variants are not counted."
    ]
    timed = [cost for cost in begun if cost.spent_minutes is not None and cost.planned_minutes is not None]
    if done := [cost for cost in timed if cost.state == "done"]:
        kinds = ", ".join(dict.fromkeys(cost.device for cost in done))
        beyond = _minutes(cost for cost in done if cost.is_forecast)
        of_larger = f", {beyond:,.1f} of them the forecast's" if beyond else ""
        planned = sum(cost.planned_minutes or 0.0 for cost in done)
        notes.append(
            f"Training took {_minutes(done):,.1f} minutes of its devices ({kinds}){of_larger}; {planned:,.1f} were "
            f"planned. Planned are the steps as `scaling plan` times them on that device, with the start of each run; "
            f"spent is the runs' own clock times their processes. Runs that shared a device each count its time."
        )
    if others := [cost for cost in timed if cost.state != "done"]:
        notes.append(f"Not done: {len(others)} of the runs, which took {_minutes(others):,.1f} minutes more.")
    if any(cost.mfu_exact is not None for cost in begun):
        notes.append("MFU: FLOP of the convention exact over spent time and the device's dense bf16 peak.")
    if len(timed) < len(begun):
        notes.append(f"{counted(len(begun) - len(timed), 'run has', 'runs have')} no time or no known device.")
    return notes


def _flop(costs: Sequence[Cost]) -> str:
    return flop(sum(cost.flops_exact for cost in costs))


def _minutes(costs: Iterable[Cost]) -> float:
    return sum(cost.spent_minutes or 0.0 for cost in costs)


def fitted_line(fits: StudyFits) -> str:
    """How many runs, sizes and seeds the laws rest on, and the largest compute among them; "" without laws."""
    groups = [group for group in fits.groups if group.sizes]
    if not fits.laws or not groups:
        return ""
    n_params = [size.n_params for group in groups for size in group.sizes]
    sizes = _from_to({len(group.sizes) for group in groups}, "size")
    seeds = _from_to({size.n_seeds for group in groups for size in group.sizes}, "seed")
    n_runs = sum(group.n_runs for group in groups)
    lengths = n_runs / sum(size.n_seeds for group in groups for size in group.sizes)
    of_lengths = f" and {lengths:.2g} lengths on average" if lengths > 1 else ""
    ends = sorted(max(law.range[1] for law in fits.of(group.name)) for group in groups if fits.of(group.name))
    largest = " to ".join(dict.fromkeys(map(power_of_ten, (ends[0], ends[-1]))))
    return (
        f"fitted: {counted(n_runs, 'run')}, of each architecture {sizes} from "
        f"{count(min(n_params))} to {count(max(n_params))} {fits.conventions['N']} with {seeds}{of_lengths}; the "
        f"largest runs took {largest} FLOP ({fits.conventions['C']})"
    )


def _from_to(amounts: set[int], noun: str) -> str:
    low, high = min(amounts), max(amounts)
    return counted(high, noun) if low == high else f"{low} to {counted(high, noun)}"


def unused_runs(fits: StudyFits, done_alone: bool = False) -> dict[str, list[str]]:
    """By reason, the ids of the runs that are in no fit; done_alone: without those that have not ended well."""
    reasons: dict[str, list[str]] = {}
    for run in (run for group in fits.groups for run in group.left_out if run.state == "done" or not done_alone):
        state = "" if run.state == "done" else f"state {run.state}"
        reasons.setdefault(", ".join(filter(None, (state, run.reason))), []).append(run.run_id)
    for left_out in fits.left_out:
        why = left_out["why"]
        reasons.setdefault(VARIANT if why.startswith(VARIANT) else why, []).append(left_out["run_id"])
    return reasons


def unused_lines(fits: StudyFits) -> list[str]:
    """Runs that are in no fit, those that are so for one reason in one line; and those of which single rows or
    evaluations are left out."""
    reasons = unused_runs(fits)
    lines = [f"{counted(len(runs), 'run')} left out of the fits, {why}: {named(runs)}" for why, runs in reasons.items()]
    return lines + [
        f"{run['run_id']}: single rows or evaluations of it are left out, not the run: {run['why']}"
        for run in fits.skipped
    ]


def corpus_section(manifest: Mapping[str, Any] | None) -> Section:
    if manifest is None:
        return Section("Corpus", ["The corpus has no manifest."])
    return Section("Corpus", tables=[pairs("corpus", corpus_facts(manifest))])


def corpus_facts(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Source, sizes and cleaning of a corpus, from its manifest."""
    facts = {"source": shown_source(manifest["settings"]["source"]), "tokenizer": manifest["tokenizer"]["name"]}
    for source in manifest.get("mixture", []):
        facts[f"source {source['name']}"] = f"weight {source['weight']:g}: {_sizes(source['splits']['train'])}"
    facts |= {split: _sizes(sizes) for split, sizes in manifest["splits"].items()}
    facts |= {name.replace("_", " "): f"{count:,}" for name, count in manifest["counts"].items()}
    facts |= {f"cleaning: {entry['step']}": headline(entry) for entry in manifest.get("cleaning", [])}
    if shared := manifest.get("shared"):
        facts["held-out text that training text holds too"] = (
            f"{shared['tokens']:,} tokens cut from {counted(shared['documents'], 'held-out document')} "
            f"({counted(shared['passages'], 'passage')} of {shared['passage_tokens']} tokens or more)"
        )
    if rate := manifest.get("entropy_rate"):
        nats = f"{rate['nats_per_token']:.4f} {loss_unit([manifest['tokenizer']['name']])}, ends of documents counted"
        facts["entropy rate, by the source"] = f"{nats}; {rate['bits_per_byte']:.4f} bits/byte"
    return facts | {"fingerprint": manifest["fingerprint"]}


def _sizes(sizes: Mapping[str, int]) -> str:
    units = [counted(sizes["documents"], "document")] if "documents" in sizes else []
    return ", ".join([*units, *(f"{sizes[unit]:,} {unit}" for unit in ("bytes", "tokens") if unit in sizes)])


def contamination_section(record: Mapping[str, Any] | None, tasks: Sequence[str], study: str) -> Section:
    """What the training text holds of evaluation sets (analysis.contamination). tasks: those of the study that have
    texts of their own."""
    sets = (record or {"sets": {}})["sets"]
    notes = []
    if record and sets:
        notes.append(
            f"A document overlaps where {record['words']} of its words in a row stand in the training text too (in "
            f"Chinese, characters). One n-gram may be a common phrase or a quotation; a document of which at least "
            f"half of the n-grams are there was most likely trained on. Examples: results/contamination.json."
        )
    searched = {task for name in sets for task in name.split(", ")}
    if missing := [task for task in tasks if task not in searched]:
        notes.append(
            f"Not held against the training text: {', '.join(missing)}. `scaling eval contamination {study}` does it, "
            f"once for a corpus."
        )
    rows = [_overlap_row(name, overlap) for name, overlap in sorted(sets.items())]
    return Section("Evaluation sets in the training text", tables=[Table("contamination", rows)], notes=notes)


def _overlap_row(name: str, overlap: Mapping[str, Any]) -> dict[str, str]:
    judged = overlap["documents"] - overlap["short"]
    return {
        "set": name,
        "documents": shown(overlap["documents"], ",d"),
        "too short to judge": shown(overlap["short"], ",d"),
        "overlapping": f"{overlap['overlapping']:,} ({_share(overlap['overlapping'], judged)})",
        "at least half of them": f"{overlap['mostly']:,} ({_share(overlap['mostly'], judged)})",
        "of their n-grams": _share(overlap["ngrams_found"], overlap["ngrams"]),
        "example": next((f"{example['document']}: {example['words']}" for example in overlap["examples"]), ""),
    }


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.2%}" if whole else "none judged"
