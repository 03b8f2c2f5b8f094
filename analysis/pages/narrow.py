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
    """A panel of a figure. x, y: the names of its axes in the layout; left .. top: its place in the figure, from 0 to
    1; note: the index of the annotation that is its title, None where it has none."""

    x: str
    y: str
    left: float
    right: float
    bottom: float
    top: float
    note: int | None


def narrow_layout(figure: go.Figure) -> Values:
    """The parts of `figure.layout` that differ for a phone, each whole, for plotly.js; the figure is left as it is."""
    layout = figure.to_dict()["layout"]
    notes = [dict(note) for note in layout.get("annotations", ())]
    margin = {"t": 50, "b": 60} | layout.get("margin", {})
    whole = float(layout.get("height", HEIGHT)) - margin["t"] - margin["b"]
    bottom = min(margin["b"], BOTTOM)  # without the legend that a wide figure may have there
    panels = _panels(figure, layout, notes)
    heights = [whole * (box.top - box.bottom) for box in panels]
    texts = ["" if box.note is None else str(notes[box.note]["text"]) for box in panels]
    gaps = [GAP + LINE * text.count("<br>") for text in texts[1:]] + [0]
    inner = sum(heights) + sum(gaps)
    changes: Values = {}
    titles: dict[float, Any] = {}  # by row: of its first axis, which speaks for the others
    place = inner
    for panel, height, gap in zip(panels, heights, gaps, strict=True):
        low, high = max((place - height) / inner, 0.0), min(place / inner, 1.0)
        place -= height + gap
        axis_title = layout.get(panel.y, {}).get("title") or {}
        first = titles.setdefault(panel.top, axis_title)
        title = axis_title if axis_title.get("text") else first
        changes[panel.x] = layout.get(panel.x, {}) | {"domain": [0, 1], "showticklabels": True}
        changes[panel.y] = layout.get(panel.y, {}) | {"domain": [low, high], "showticklabels": True, "title": title}
        if panel.note is not None:
            notes[panel.note] |= {"x": 0.5, "y": high}
    legends, lines = _legends(figure, layout, bottom / inner)
    changes |= legends
    changes["annotations"] = notes
    changes["margin"] = margin | {"l": LEFT, "r": RIGHT, "b": bottom + lines * LINE + BETWEEN * bool(lines)}
    changes["height"] = round(inner + changes["margin"]["t"] + changes["margin"]["b"])
    if "title" in layout:
        changes["title"] = layout["title"] | {"font": {"size": 13}}
    return changes


def _panels(figure: go.Figure, layout: Values, notes: list[Values]) -> list[Panel]:
    """The panels that hold traces, in the order of reading."""
    panels = []
    for x in dict.fromkeys(f"xaxis{(trace.xaxis or 'x').removeprefix('x')}" for trace in figure.data):
        y = f"yaxis{str(layout.get(x, {}).get('anchor', 'y')).removeprefix('y')}"
        (left, right), (bottom, top) = (layout.get(axis, {}).get("domain", (0, 1)) for axis in (x, y))
        above = [
            i
            for i, note in enumerate(notes)
            if note.get("xref") == note.get("yref") == "paper"
            and abs(note["x"] - (left + right) / 2) < NEAR
            and abs(note["y"] - top) < NEAR
        ]
        panels.append(Panel(x, y, left, right, bottom, top, above[0] if above else None))
    return sorted(panels, key=lambda panel: (-panel.top, panel.left))


def _legends(figure: go.Figure, layout: Values, below: float) -> tuple[Values, int]:
    """The legends side by side below the panels (a single legend in columns), and how many lines the longest has, with
    its title. below: how far."""
    names: dict[str, set[str]] = {}
    for trace in figure.data:
        if trace.showlegend is not False and trace.name:
            names.setdefault(trace.legend or "legend", set()).add(trace.name)
    if layout.get("showlegend") is False or (len(figure.data) < 2 and layout.get("showlegend") is not True):
        names = {}
    legends = {}
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
        legends[name] = layout.get(name, {}) | at | SMALL | {"title": title}
        heading = str(title.get("text", ""))
        columns = 2 if alone and max(map(len, names[name])) <= SHORT else 1
        lines.append(-(-len(names[name]) // columns) + bool(heading) + heading.count("<br>"))
    return legends, max(lines)
