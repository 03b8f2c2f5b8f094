"""Study files for the tests of planning and submission: nothing here trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from scaling.study.jobs_schema import Cluster
from scaling.study.spec import StudySpec, load_study

CPUS: dict[str, Any] = {"nodes": 4, "cpus_per_node": 64, "memory_gb_per_node": 400, "max_hours": 1, "signal_s": 30}
GPUS: dict[str, Any] = {"nodes": 8, "cpus_per_node": 64, "gpus_per_node": 8, "memory_gb_per_node": 500}


def study_file(folder: Path, sizes: list[str], seeds: int = 1, name: str = "tiny", **more: Any) -> Path:
    """A study of small models on synthetic text; `more` replaces sections."""
    study: dict[str, Any] = {
        "name": name,
        "out": str(folder / "out"),
        "corpus": {"source": "synthetic:0:60000"},
        "grid": {"archs": ["llama", "hgrn2"], "sizes": sizes, "seeds": list(range(seeds))},
        "model": {"context_length": 64},
        "training": {"n_tokens": 2560, "batch_tokens": 512, "lr": 3e-3},
        "jobs": {"cluster": CPUS},
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(study | more), encoding="utf-8")
    return path


def study(folder: Path, sizes: list[str], seeds: int = 1, **more: Any) -> StudySpec:
    return load_study(study_file(folder, sizes, seeds, **more))


def cluster(**keys: Any) -> Cluster:
    """A profile; `keys` over CPUS."""
    return Cluster(**(CPUS | keys))
