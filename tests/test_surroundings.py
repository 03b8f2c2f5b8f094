"""What a session of tests finds around it is its own."""

import os
import subprocess
import sys
from pathlib import Path

from scaling.study.spec import load_study
from tests.surroundings import HOME, ROOT, WORK

POISONED = {
    **dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_TOKEN_PATH"), "/x"),
    **dict.fromkeys(("TRITON_CACHE_DIR", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRANSFORMERS_CACHE"), "/x"),
    **dict.fromkeys(("JUPYTER_CONFIG_DIR", "IPYTHONDIR", "MPLCONFIGDIR", "NLTK_DATA", "DATA_GYM_CACHE_DIR"), "/x"),
    **{"SLURM_MEM_PER_CPU": "500", "SLURM_CONF": "/x", "SBATCH_PARTITION": "x", "RANK": "1", "WORLD_SIZE": "2"},
    **{"KILL_AT_WRITE": "run:1", "GATE": "1:/x", "PET_NNODES": "/x", "SQUEUE_FORMAT": "/x"},
}


def test_tests_work_in_a_folder_without_studies_and_a_home_without_files() -> None:
    assert Path.cwd() == WORK.resolve() and not list(WORK.iterdir()) and ROOT not in WORK.resolve().parents
    assert Path.home() == HOME and os.environ["HOME"] == str(HOME)
    assert not load_study("quickstart").directory.exists()


def test_variables_of_a_user_a_launcher_and_a_scheduler_are_gone() -> None:
    code = "import os; from tests.surroundings import enter, leave; enter(); leave(); print(sorted(os.environ.items()))"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | POISONED,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "/x" not in result.stdout
    assert not [name for name in POISONED if f"'{name}'" in result.stdout and not name.endswith(("HOME", "DIR"))]


def test_no_test_works_in_the_checkout() -> None:
    """Where `make study` leaves its study; git is asked there for the pages."""
    given = "cwd=" + "ROOT"
    result = [path for path in (ROOT / "tests").rglob("*.py") if given in path.read_text(encoding="utf-8")]
    assert result == [ROOT / "tests" / "docs" / "test_pages.py"]
