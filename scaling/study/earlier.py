"""Keys of a study file that earlier versions called otherwise: stored runs may say them, study files are told the new
name. A run's hash is made of the earlier names, so that runs keep theirs. Fields of the model: arch.earlier.
"""

from __future__ import annotations

from typing import Any

TRAINING = {"artifact_dtype": "checkpoint_dtype"}  # earlier name: the name of today


def training_of_today(stored: Any) -> Any:
    """A stored section `training` by the names of today; anything else than a mapping as it is."""
    return {TRAINING.get(key, key): value for key, value in stored.items()} if isinstance(stored, dict) else stored


def training_as_hashed(training: dict[str, Any]) -> dict[str, Any]:
    """The section by the earlier names."""
    earlier = {name: old for old, name in TRAINING.items()}
    return {earlier.get(key, key): value for key, value in training.items()}


def instead_of(key: str) -> str | None:
    """What to write for an earlier key of the section `training` or of an override, to follow it in a sentence."""
    return f"is now {TRAINING[key]}" if key in TRAINING else None
