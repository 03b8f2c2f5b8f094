"""Fits of studies with few replicates of their intervals, for tests that rest on no interval's ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from analysis import stage

REPLICATES = 40


@contextmanager
def few_replicates() -> Iterator[None]:
    """What the stage fits while this is open."""
    of_study = stage._fit_settings
    with pytest.MonkeyPatch.context() as patch:
        few = {"n_replicates": REPLICATES}
        patch.setattr(stage, "_fit_settings", lambda study: of_study(study).model_copy(update=few))
        yield
