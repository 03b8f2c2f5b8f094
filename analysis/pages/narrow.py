"""A figure's layout for a phone: its panels below one another, as wide as the window, and the legends below them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import plotly.graph_objects as go

GAP, LINE = 92, 19  # pixels: between panels, for ticks, an axis' title and the next panel's name; a line of text
LEFT, RIGHT, BOTTOM, BETWEEN = 62, 14, 60, 24
HEIGHT = 450  # of a figure that says none: plotly's own
SMALL = {"font": {"size": 11}}
SHORT = 12  # characters of a legend's names, two of which stand side by side
NEAR = 1e-6  # of a figure's width and height
Values = dict[str, Any]


class Panel(NamedTuple):
    """x, y: the names of its axes in the layout; left .. top: where it lies in the figure, from 0 to 1; note: which
    annotation is its title; None where it has none."""

    x: str
    y: str
    left: float
    right: float
    bottom: float
    top: float
    note: int | None


def narrow_layout(figure: go.Figure) -> Values:
    """Those parts of `figure.layout` that differ in it, each whole, for plotly.js; the figure is left as it is."""
    layout = figure.to_dict()["layout"]
    notes = [dict(one) for one in layout.get("annotations", ())]
    margin = {"t": 50, "b": 60} | layout.get("margin", {})
    whole = float(layout.get("height", HEIGHT)) - margin["t"] - margin["b"]
    bottom = min(margin["b"], BOTTOM)  # without the legend that a wide figure may have there
    panels = _panels(figure, layout, notes)
    heights = [whole * (one.top - one.bottom) for one in panels]
    texts = ["" if one.note is None else str(notes[one.note]["text"]) for one in panels]
    gaps = [GAP + LINE * text.count("<br>") for text in texts[1:]] + [0]
    inner = sum(heights) + sum(gaps)
    found: Values = {}
    titles: dict[float, Any] = {}  # by row: of its first axis, which speaks for the others
    place = inner
    for panel, height, gap in zip(panels, heights, gaps, strict=True):
        low, high = max((place - height) / inner, 0.0), min(place / inner, 1.0)
        place -= height + gap
        own = layout.get(panel.y, {}).get("title") or {}
        first = titles.setdefault(panel.top, own)
        title = own if own.get("text") else first
        found[panel.x] = layout.get(panel.x, {}) | {"domain": [0, 1], "showticklabels": True}
        found[panel.y] = layout.get(panel.y, {}) | {"domain": [low, high], "showticklabels": True, "title": title}
        if panel.note is not None:
            notes[panel.note] |= {"x": 0.5, "y": high}
    legends, lines = _legends(figure, layout, bottom / inner)
    found |= legends
    found["annotations"] = notes
    found["margin"] = margin | {"l": LEFT, "r": RIGHT, "b": bottom + lines * LINE + BETWEEN * bool(lines)}
    found["height"] = round(inner + found["margin"]["t"] + found["margin"]["b"])
    if "title" in layout:
        found["title"] = layout["title"] | {"font": {"size": 13}}
    return found


def _panels(figure: go.Figure, layout: Values, notes: list[Values]) -> list[Panel]:
    """Those that hold anything, in the order of reading."""
    found = []
    for x in dict.fromkeys(f"xaxis{(trace.xaxis or 'x').removeprefix('x')}" for trace in figure.data):
        y = f"yaxis{str(layout.get(x, {}).get('anchor', 'y')).removeprefix('y')}"
        (left, right), (bottom, top) = (layout.get(axis, {}).get("domain", (0, 1)) for axis in (x, y))
        above = [
            i
            for i, one in enumerate(notes)
            if one.get("xref") == one.get("yref") == "paper"
            and abs(one["x"] - (left + right) / 2) < NEAR
            and abs(one["y"] - top) < NEAR
        ]
        found.append(Panel(x, y, left, right, bottom, top, above[0] if above else None))
    return sorted(found, key=lambda one: (-one.top, one.left))


def _legends(figure: go.Figure, layout: Values, below: float) -> tuple[Values, int]:
    """Side by side below the panels, one alone in columns, and how many lines the longest has, its title among them;
    `below`: how far."""
    names: dict[str, set[str]] = {}
    for trace in figure.data:
        if trace.showlegend is not False and trace.name:
            names.setdefault(trace.legend or "legend", set()).add(trace.name)
    if layout.get("showlegend") is False or (len(figure.data) < 2 and layout.get("showlegend") is not True):
        names = {}
    found = {}
    alone, lines = len(names) == 1, [0]
    for i, name in enumerate(sorted(names)):
        at = {
            "x": i / len(names),
            "y": -below,
            "xanchor": "left",
            "yanchor": "top",
            "orientation": "h" if alone else "v",
        }
        title = (layout.get(name, {}).get("title") or {}) | {"side": "top"}
        found[name] = layout.get(name, {}) | at | SMALL | {"title": title}
        told = str(title.get("text", ""))
        columns = 2 if alone and max(map(len, names[name])) <= SHORT else 1
        lines.append(-(-len(names[name]) // columns) + bool(told) + told.count("<br>"))
    return found, max(lines)
