"""Tests of kernels (test_triton*.py) where there is no Triton: each file is skipped, which shows."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest


class WithoutTriton(pytest.Module):
    def collect(self) -> list[pytest.Item]:
        pytest.skip("triton is not installed (pip install triton==3.7.1)", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    if module_path.name.startswith("test_triton") and importlib.util.find_spec("triton") is None:
        return WithoutTriton.from_parent(parent, path=module_path)
    return None


@pytest.fixture(scope="session", autouse=True)
def quick() -> Iterator[None]:
    if importlib.util.find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1":
        yield
        return
    from .quick_interpreter import quick_interpreter

    with quick_interpreter():
        yield


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Gluon kernels run in gluon_emulator.py."""
    from .hopper import emulate

    emulate(monkeypatch)


@pytest.fixture
def on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """What passes for a Hopper GPU."""
    from .hopper import pass_for_hopper

    pass_for_hopper(monkeypatch)


@pytest.fixture
def rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands of products and the states that are kept are rounded."""
    from .roundings import round_as_a_gpu

    round_as_a_gpu(monkeypatch)
