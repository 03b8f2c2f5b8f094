"""Writes the generated parts of the pages for people: `make docs`, which is `python -m docs.generate`.

docs/study-file.md lists the keys of a study file, which come from the schema. docs/commands.md lists the commands and
their options, which come from the command lines. README.md and the findings of the published study have tables of its
files. A generated part stands between `<!-- generated: NAME -->` and
`<!-- end -->`; the text outside of these marks is written by hand and kept. tests/docs/test_pages.py compares the
committed pages with what this module generates.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

from arch.registry import ARCHITECTURES

ROOT = Path(__file__).resolve().parents[1]
GENERATED = re.compile(r"<!-- generated: (?P<name>[a-z-]+) -->\n.*?<!-- end -->", re.S)
REFRESH = "make docs"


def page(path: Path) -> str:
    """The text of a page with its generated parts as the code has them now. Raises KeyError for an unknown part."""
    from . import of_study as study
    from .of_commands import flops_commands, module_commands, scaling_commands
    from .of_large_models import sharded
    from .of_schema import keys, model_keys, sizes

    parts: dict[str, Callable[[], str]] = {
        "keys": keys,
        "model": model_keys,
        "sizes": sizes,
        "scaling": scaling_commands,
        "flops": flops_commands,
        "modules": module_commands,
        "large-models": sharded,
        "study-summary": study.summary,
        "study-minima": study.minima,
        "study-exponents": study.exponents,
        "study-counts": study.counts,
        "study-forecast": study.forecast,
    }

    def generated(match: re.Match[str]) -> str:
        return f"<!-- generated: {match['name']} -->\n\n{parts[match['name']]()}\n\n<!-- end -->"

    with patch.dict(ARCHITECTURES):  # a study registers its hybrids, which no other page knows
        return GENERATED.sub(generated, path.read_text(encoding="utf-8"))


def generated_pages() -> list[Path]:
    """The pages that have generated parts."""
    pages = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("analysis/studies/*/FINDINGS.md"))]
    return [path for path in pages if GENERATED.search(path.read_text(encoding="utf-8"))]


def table(heads: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; a bar inside a cell is escaped."""
    lines = [heads, ["---"] * len(heads), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("|" + "".join(f" {cell} |" if cell else " |" for cell in cells) for cells in lines)


def main() -> None:
    for path in generated_pages():
        text = page(path)
        changed = text != path.read_text(encoding="utf-8")
        path.write_text(text, encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {'written' if changed else 'unchanged'}")


if __name__ == "__main__":
    main()
