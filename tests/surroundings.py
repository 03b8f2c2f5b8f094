"""What a session of tests finds around it: a home, caches and a folder to work in of its own, all of them empty.

So no test reads what an earlier command left (`out/`, caches), nor what belongs to the user or the job that starts the
tests: configuration, cluster profiles, a launcher's or a scheduler's variables.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

from jobs.slurm import OF_SLURM
from scaling.rundir.launcher import OF_LAUNCHERS

ROOT = Path(__file__).resolve().parents[1]
OF_USERS = re.compile(
    r"XDG_.*|(HF|HUGGINGFACE|TRANSFORMERS|TORCH|TORCHINDUCTOR|TRITON|NLTK|JUPYTER|IPYTHON|MPL|DATA_GYM)_?"
    r"(HOME|DIR|DATA|PATH|CONFIG|CONFIGDIR|\w*TOKEN\w*|\w*CACHE\w*|\w*_DIR)|KILL_AT_WRITE|GATE|COLUMNS"
)
OWN = Path(tempfile.mkdtemp(prefix="tests-"))
HOME, WORK = OWN / "home", OWN / "work"


def enter() -> None:
    """To be called before anything is imported that looks for its caches."""
    for name in list(os.environ):
        if any(pattern.fullmatch(name) for pattern in (OF_USERS, OF_SLURM, OF_LAUNCHERS)):
            del os.environ[name]
    for folder in (HOME, WORK):
        folder.mkdir()
    os.environ["HOME"] = str(HOME)
    os.environ["DATA_GYM_CACHE_DIR"] = str(HOME / "data-gym-cache")  # tiktoken's is in /tmp
    os.environ["TRITON_CACHE_DIR"] = str(ROOT / ".pytest_cache" / "triton")  # compiled kernels, by their sources' hash


def leave() -> None:
    shutil.rmtree(OWN, ignore_errors=True)
