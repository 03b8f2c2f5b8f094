"""The eighth architecture, taken from the page that tells how to add one (arch/ADDING.md)."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "arch" / "ADDING.md"


def page_files() -> dict[str, str]:
    """File name -> content, of the page's blocks that begin with their file's name."""
    blocks = re.findall(
        r"^```\w+\n# (\S+\.\w+)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert len({name for name, _ in blocks}) == len(blocks)
    return dict(blocks)


def page_commands() -> list[str]:
    """The page's shell lines."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]
