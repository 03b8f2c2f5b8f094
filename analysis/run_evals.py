"""The held-out losses of a run, from its evaluations on disk."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from analysis.labels import OF_SOURCE
from data.files import read_object, reading
from scaling.study.training import Training


def held_out_losses(run: Path, training: Training) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The held-out losses of a run, of a mixture `loss:NAME` of each source too, and how many files hold none, by
    reason: of another version, which the next evaluation replaces. Raises InputError for a damaged file."""
    evaluations = list[dict[str, Any]]()
    bad = 0
    for path in sorted(run.glob("evals/*/validation.json")):
        with reading(path, "`scaling eval study` makes it again"):
            result = read_object(path)
            name, step = result.get("run_id", run.name), result.get("step", path.parent.name)
            if (name, str(step).zfill(8)) != (run.name, path.parent.name):
                raise ValueError(f"it is that of {name!r:.120} after step {step!r:.20}")
        try:
            values = result["values"]
            if values.get("loss") is None:  # a model that diverged
                continue
            keys = ("loss", "perplexity", "bits_per_byte")  # a labelled set has no bytes
            numbers = [values[key] for key in keys if key != keys[2] or values.get("n_bytes_scored") != 0]
            step, n_tokens = result["step"], result["n_tokens"]
            right = type(step) is int and step > 0 and n_tokens == step * training.batch_tokens
            if not right or not all(type(v) in (int, float) and 0 < v < math.inf for v in numbers):
                raise ValueError
            settings = {"validation_tokens": result["settings"]["validation_tokens"]}
            of_sources = {OF_SOURCE + name: float(of["loss"]) for name, of in (values.get("by_source") or {}).items()}
            evaluations.append(result | values | of_sources | {"settings": settings})
        except (ValueError, KeyError, TypeError, AttributeError):
            bad += 1
    return evaluations, {"evaluations that cannot be read": bad} if bad else {}
