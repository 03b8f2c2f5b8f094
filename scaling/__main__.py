"""`python -m scaling`, and the console script: Ctrl-C is one line and exit status 130 during the imports, too."""

from __future__ import annotations

import os
import sys


def main() -> None:
    if __name__ != "__main__":  # the console script finds no module in the working folder: what it starts does neither
        os.environ["PYTHONSAFEPATH"] = "1"
    try:
        from .cli.main import main as command
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    command()


if __name__ == "__main__":
    main()
