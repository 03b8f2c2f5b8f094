"""The report's tables of runs, checkpoints and corpus."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.fits.losses import RunCurves
from analysis.fits.study_fits import StudyFits
from analysis.pages.cells import shown
from analysis.run_table import RunTable
from arch.amounts import counted
from data.clean.summary import examples, headline
from data.settings import shown_source
from data.units import loss_unit


def run_rows(fits: StudyFits, tables: RunTable) -> list[dict[str, str]]:
    evals = tables.evals
    best = evals.groupby("run_id")[["loss", "bits_per_byte"]].min() if len(evals) else pd.DataFrame()
    settings, unused = fits.settings, {run["run_id"]: run["why"] for run in fits.left_out}
    curves, rows = RunCurves(tables, settings), []
    for run in tables.runs.to_dict("records"):
        curve = curves.of(str(run["run_id"])).loss
        held_out = best.loc[run["run_id"]] if run["run_id"] in best.index else {}
        rows.append(
            {
                "run": str(run["run_id"]),
                "state": str(run["state"]),
                "parameters (non-embedding)": shown(run["n_params_non_embedding"], ",.0f"),
                "all parameters": shown(run["n_params"], ",.0f"),
                "tokens": shown(run["n_tokens"], ",.0f"),
                "epochs": shown(run["epochs"], ".2f"),
                "learning rate": shown(run["lr"], "g"),
                "last loss (smoothed)": shown(float(curve[-1]), ".4f") if len(curve) else "",
                "best held-out loss": shown(held_out.get("loss"), ".4f"),
                "bits/byte": shown(held_out.get("bits_per_byte"), ".4f"),
                "time (s)": shown(run["time_s"], ".1f"),
                "tokens/s": shown(run["tokens_per_s"], ",.0f"),
                "why": "" if pd.isna(run["reason"]) else str(run["reason"]),
                **({"not in the fits": unused.get(str(run["run_id"]), "")} if unused else {}),
                "rows left out": run["skipped_why"] if run["skipped_rows"] else "",
            }
        )
    return rows


def checkpoint_rows(tables: RunTable) -> list[dict[str, str]]:
    """A row an evaluated checkpoint."""
    unit = loss_unit(tables.runs["tokenizer"])
    return [
        {
            "run": str(row["run_id"]),
            "step": str(row["step"]),
            "tokens": str(row["n_tokens"]),
            "C (FLOP, exact)": shown(row["flops_exact"], ".6g"),
            f"loss ({unit})": shown(row["loss"], ".4f"),
            "bits/byte": shown(row["bits_per_byte"], ".4f"),
        }
        for row in tables.evals.to_dict("records")
    ]


def training_rows(tables: RunTable) -> dict[str, str]:
    """How the runs were trained, where and when: what all share, or each of what differs."""
    runs = tables.runs
    days = sorted(runs["started"].dropna().unique())
    return {
        "batch (tokens)": _each(runs["batch_tokens"], ",.0f"),
        "context (tokens)": _each(runs["context_length"], ",.0f"),
        "optimizer": _each(runs["optimizer"]),
        "warm-up (tokens)": _each(runs["warmup_tokens"], ",.0f"),
        "precision": _each(runs["precision"]),
        "hardware": _each(runs["hardware"]) or "not recorded",
        "training began": " to ".join(dict.fromkeys([days[0], days[-1]])) if days else "",
    }


def corpus_rows(manifest: dict[str, Any]) -> dict[str, str]:
    rows = {"source": shown_source(manifest["settings"]["source"]), "tokenizer": manifest["tokenizer"]["name"]}
    for source in manifest.get("mixture", []):
        sizes = [f"{source['splits'][split]['tokens']:,}" for split in ("train", "validation")]
        rows[f"source {source['name']}"] = (
            f"weight {source['weight']:g}: {sizes[0]} tokens to train on, {sizes[1]} held out"
        )
    for split, counts in manifest["splits"].items():
        rows[split] = (
            f"{counted(counts['documents'], 'document')}, {counts['bytes']:,} bytes, {counts['tokens']:,} tokens"
        )
    rows |= {name.replace("_", " "): f"{count:,}" for name, count in manifest["counts"].items()}
    if share := manifest.get("held_out_share"):
        rows["held out"] = f"{share:.2%} of the bytes"
    for entry in manifest.get("cleaning", []):
        rows[f"cleaning: {entry['step']}"] = "; ".join([headline(entry), *examples(entry)])
    rows["held-out text that training text holds too"] = _shared(manifest["shared"])
    if rate := manifest.get("entropy_rate"):
        nats = f"{rate['nats_per_token']:.4f} {loss_unit([manifest['tokenizer']['name']])}, ends of documents counted"
        rows["entropy rate, by the source"] = f"{nats}; {rate['bits_per_byte']:.4f} bits/byte"
    return rows | {"fingerprint": manifest["fingerprint"]}


def _shared(shared: dict[str, int]) -> str:
    return (
        f"{shared['tokens']:,} tokens cut from {shared['documents']:,} held-out documents "
        f"({counted(shared['passages'], 'passage')} of {shared['passage_tokens']} tokens or more)"
    )


def _each(values: pd.Series[Any], form: str = "") -> str:
    return "; ".join(format(value, form) for value in values.dropna().unique())
