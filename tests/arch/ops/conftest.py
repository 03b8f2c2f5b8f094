"""Tests of kernels (test_triton*.py) where there is no Triton: each file is skipped, which shows."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest


class WithoutTriton(pytest.Module):
    def collect(self) -> list[pytest.Item]:
        pytest.skip("triton is not installed (pip install triton==3.7.1)", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    if module_path.name.startswith("test_triton") and importlib.util.find_spec("triton") is None:
        return WithoutTriton.from_parent(parent, path=module_path)
    return None
