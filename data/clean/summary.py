"""What a cleaning step dropped, as text for a terminal and for the report."""

from __future__ import annotations

from typing import Any

from arch.amounts import counted


def headline(entry: dict[str, Any]) -> str:
    """How many documents a step dropped, of an entry of manifest["cleaning"]."""
    by = f" ({entry['by']})" if "by" in entry else ""
    similarity = f" (similarity of at least {entry['similarity']:g})" if "similarity" in entry else ""
    text = f"{entry['dropped']:,} of {counted(entry['documents'], 'document')} dropped"
    if "bytes" in entry:
        text += f", {entry['bytes']:,} bytes"
    if why := entry.get("reasons"):
        text += " (" + ", ".join(f"{count:,} {reason}" for reason, count in why.items()) + ")"
    if entry.get("cut_short"):
        text += f"; {entry['cut_short']:,} have more candidates than are compared, and stay"
    return f"{entry['step']}{by}{similarity}: {text}"


def examples(entry: dict[str, Any]) -> list[str]:
    """A line for each example of what the step dropped: its id, why, and its first characters."""
    lines = []
    for example in entry["examples"]:
        why = f" is {example['similarity']:.2f} like {example['like']}" if "like" in example else ""
        why += f" ({example['why']})" if example.get("why") else ""
        lines.append(f"{example['document']}{why}: {example['text']!r}")
    return lines
