"""Write laws.csv: `python -m tests.golden.make` all of it, with names of sources only those. Run where ../shared is."""

from __future__ import annotations

import csv
import sys
import tempfile
import time
from pathlib import Path

from scaling.cli.main import fix_bits

fix_bits()  # before numpy is imported
from .sources import FIELDS, SOURCES, Row  # noqa: E402

LAWS = Path(__file__).with_name("laws.csv")


def read_laws() -> list[Row]:
    with LAWS.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_laws(rows: list[Row]) -> None:
    with LAWS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def make(names: list[str], drawn: Path) -> None:
    """Those sources anew; the rows of the others stay. drawn: of sources.Place."""
    order = {source.name: place for place, source in enumerate(SOURCES)}
    if unknown := set(names) - order.keys():
        sys.exit(f"no source {', '.join(sorted(unknown))}: the sources are {', '.join(order)}")
    rows = read_laws() if LAWS.exists() else []
    for source in SOURCES:
        if names and source.name not in names:
            continue
        if source.needs is not None and not source.needs.exists():
            sys.exit(f"{source.name}: needs {source.needs}")
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            made = source.rows(Path(folder), drawn)
        rows = [row for row in rows if row["source"] != source.name] + made
        print(f"{source.name}: {len(made)} rows, {time.monotonic() - start:.1f} s", flush=True)
        write_laws(sorted(rows, key=lambda row: order[row["source"]]))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        make(sys.argv[1:], Path(folder))
