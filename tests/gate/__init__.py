"""Runs that wait in the middle of their training for a test: see sitecustomize.py beside this."""

import os
from pathlib import Path

HERE = Path(__file__).parent


def gated(step: int, file: Path) -> dict[str, str]:
    """What the environment says for runs to wait after the row of `step` until `file` is there, or a stop signal."""
    path = [str(HERE), str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"GATE": f"{step}:{file}", "PYTHONPATH": os.pathsep.join(path)}
