"""What a cleaning step dropped, in words: the same in a terminal and in the report."""

from __future__ import annotations

from typing import Any

from arch.amounts import counted


def headline(entry: dict[str, Any]) -> str:
    """How many documents a step dropped, of an entry of manifest["cleaning"]."""
    by = f" ({entry['by']})" if "by" in entry else ""
    similarity = f" (similarity of at least {entry['similarity']:g})" if "similarity" in entry else ""
    told = f"{entry['dropped']:,} of {counted(entry['documents'], 'document')} dropped"
    if "bytes" in entry:
        told += f", {entry['bytes']:,} bytes"
    if why := entry.get("reasons"):
        told += " (" + ", ".join(f"{count:,} {reason}" for reason, count in why.items()) + ")"
    if entry.get("cut_short"):
        told += f"; {entry['cut_short']:,} met more documents that may be alike than are compared, and stay"
    return f"{entry['step']}{by}{similarity}: {told}"


def examples(entry: dict[str, Any]) -> list[str]:
    """A line for each example of what the step dropped: its id, why, and its first characters."""
    lines = []
    for one in entry["examples"]:
        why = f" is {one['similarity']:.2f} like {one['like']}" if "like" in one else ""
        why += f" ({one['why']})" if one.get("why") else ""
        lines.append(f"{one['document']}{why}: {one['text']!r}")
    return lines
