"""An architecture from outside: the mixer of the page that tells how to add one (docs/adding.md), with its option."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "adding.md").read_text(encoding="utf-8")
GATE = 'torch.sigmoid(stream.mask(self.project["forget"](x), torch.inf))'
REGISTER = 'register("average", mixer=lambda: Average, label="Moving average")\n'


def module() -> str:
    """average.py of the page, with what the page says of an option."""
    plain, option = (
        re.findall(rf"^```python\n{first}(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0]
        for first in ("# average.py\n", "(?=from dataclasses)")
    )
    imports, _, rest = option.partition("\n\n\n")
    assert plain.count(GATE) == plain.count(REGISTER) == plain.count("import torch\n") == 1
    power = re.search(r"with `forget (\*\* \(.*\))`:$", PAGE, re.MULTILINE)
    assert power is not None
    source = plain.replace(GATE, f"({GATE} {power[1]})").replace(REGISTER, rest)
    return source.replace("import torch\n", f"{imports}\nimport torch\n", 1)


def mixer_source() -> str:
    """The part of it that defines the mixer, without registering it."""
    return module().partition("\n@dataclass")[0]
