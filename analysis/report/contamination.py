"""The report's table of evaluation sets that the training text holds in part."""

from __future__ import annotations

from typing import Any

COMMAND = "scaling eval contamination"


def contamination_rows(record: dict[str, Any] | None) -> list[dict[str, str]]:
    """A row for each set of the record, as analysis.contamination keeps it."""
    rows = []
    for name, overlap in sorted((record or {"sets": {}})["sets"].items()):
        judged = overlap["documents"] - overlap["short"]
        row = {"set": name, "documents": f"{overlap['documents']:,}", "too short to judge": f"{overlap['short']:,}"}
        row["overlapping"] = f"{overlap['overlapping']:,} ({_share(overlap['overlapping'], judged)})"
        row["at least half of them"] = f"{overlap['mostly']:,} ({_share(overlap['mostly'], judged)})"
        row["of their n-grams"] = _share(overlap["ngrams_found"], overlap["ngrams"])
        row["example"] = next((f"{example['document']}: {example['words']}" for example in overlap["examples"]), "")
        rows.append(row)
    return rows


def contamination_notes(record: dict[str, Any] | None, tasks: list[str], study: str) -> list[str]:
    """What the table means; tasks: those of the study whose texts might overlap."""
    notes = []
    if record and record["sets"]:
        notes.append(
            f"A document overlaps where {record['words']} of its words in a row stand in the training text too (in "
            f"Chinese, characters). One n-gram may be a common phrase or a quotation; a document of which at least "
            f"half of the n-grams are there was most likely trained on. Examples: results/contamination.json."
        )
    known = {task for name in (record or {"sets": {}})["sets"] for task in name.split(", ")}
    if missing := [task for task in tasks if task not in known]:
        notes.append(
            f"Not held against the training text: {', '.join(missing)}. `{COMMAND} {study}` does it, once for a corpus."
        )
    return notes


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.2%}" if whole else "none judged"
