"""Figures as PNG files, where a Chrome is installed: one browser for all of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import plotly.graph_objects as go

SCALE = 1.5
TIMEOUT_S = 30
NO_BROWSER = "no Chrome or Chromium found"
NO_PACKAGE = "the package kaleido is not installed: pip install kaleido"


class Drawn(NamedTuple):
    """A page. fresh: it was made now; no_pictures: why there are no pictures beside it, None where there are."""

    path: Path
    fresh: bool
    no_pictures: str | None


def write_pictures(figures: Mapping[str, go.Figure], directory: Path) -> str | None:
    """Write <directory>/<name>.png for each figure. Returns why there are none, None where they were written."""
    if find_spec("kaleido") is None:
        return NO_PACKAGE
    import kaleido

    directory.mkdir(parents=True, exist_ok=True)
    specs = [
        {
            "fig": figure.to_dict(),
            "path": directory / f"{name}.png",
            "opts": {"format": "png", "width": figure.layout.width, "height": figure.layout.height, "scale": SCALE},
        }
        for name, figure in figures.items()
    ]
    try:  # mathjax would be fetched from the network
        kaleido.write_fig_from_object_sync(specs, kopts={"timeout": TIMEOUT_S, "mathjax": False})
    except Exception as error:  # a browser fails in as many ways as there are browsers; the report stands without it
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()
        if type(error).__name__ == "ChromeNotFoundError":
            return NO_BROWSER
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return None


def has_browser() -> bool:
    """Whether a browser that draws pictures, and kaleido, which calls it, are installed."""
    if find_spec("kaleido") is None:
        return False
    from choreographer.browsers.chromium import Chromium

    named = os.environ.get("BROWSER_PATH")
    return os.access(named, os.X_OK) if named else bool(Chromium.find_browser(skip_local=False))


def add_pictures(figures: Mapping[str, go.Figure], directory: Path) -> str | None:
    """As `write_pictures`, into a directory with other files, which are left alone unless they have the same names."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".") as folder:
        reason = write_pictures(figures, Path(folder) / "figures")
        for picture in Path(folder).glob("figures/*.png"):
            os.replace(picture, directory / picture.name)
    return reason
