"""A SLURM of this test session's own, where its packages are installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .cluster import INSTALL, MISSING, Cluster, cluster


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    """A cluster of four nodes. Tests that kill a part of it start that part again."""
    if MISSING:
        pytest.skip(f"no {', '.join(MISSING)} here: {INSTALL}")
    with cluster(4) as started:
        yield started
