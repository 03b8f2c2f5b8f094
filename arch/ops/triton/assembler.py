"""Which ptxas compiles the kernels. The one that Triton 3.6 and 3.7 bring (CUDA 12.8) makes kernels with Hopper's own
matrix instructions read shared memory at wild addresses (docs/research/kernels-gated-attention.md); CUDA 13.3's and
later do not. The package nvidia-cuda-nvcc brings such a one, which is used where it is installed, the driver is of its
CUDA version or a later one, and TRITON_PTXAS_PATH names no other."""

from __future__ import annotations

import os
from functools import lru_cache
from importlib import metadata

import torch
import triton

from ..common import constant

FIXED = (13, 3)


def version_of(tool: str) -> tuple[int, ...]:
    return tuple(int(x) for x in tool.split(".")[:2])


def packaged() -> str | None:
    """The path of nvidia-cuda-nvcc's ptxas, from the package's list of files."""
    try:
        files = metadata.files("nvidia-cuda-nvcc") or []
    except metadata.PackageNotFoundError:
        return None
    paths = [str(file.locate()) for file in files if file.name in ("ptxas", "ptxas.exe")]
    return next((path for path in paths if os.access(path, os.X_OK)), None)


def usable(path: str) -> triton.knobs.NvidiaTool | None:
    """The assembler at `path`, if it runs on this machine."""
    try:
        return triton.knobs.NvidiaTool.from_path(path)
    except OSError:  # another machine's, or on a disk from which nothing may be run
        return None


def loads(tool: triton.knobs.NvidiaTool) -> bool:
    """Whether the driver, where there is one, takes what this assembler makes: not of a later CUDA than its own."""
    asked = getattr(torch._C, "_cuda_getDriverVersion", None)  # 13000 for CUDA 13.0; missing in torch's CPU build
    driver = asked() if asked is not None and torch.cuda.is_available() else None
    return driver is None or version_of(tool.version)[0] <= driver // 1000


def choose() -> tuple[str, tuple[int, ...]]:
    """The path and the version of the assembler that is used from now on; ("", ()) where there is none."""
    try:
        own = triton.knobs.nvidia.ptxas
    except (RuntimeError, OSError):  # Triton found none, or what TRITON_PTXAS_PATH names cannot be run; it will say so
        return "", ()
    path = None if os.environ.get("TRITON_PTXAS_PATH") else packaged()
    other = None if path is None else usable(path)
    if other is not None and version_of(other.version) > version_of(own.version) and loads(other):
        triton.knobs.nvidia.ptxas = other.path
        own = other
    return own.path, version_of(own.version)


PATH, VERSION = choose()  # once and at import: torch.compile cannot trace a search


def trusted_assembler() -> bool:
    """Whether kernels may use Hopper's own matrix instructions."""
    return VERSION >= FIXED


@constant
def hopper() -> bool:
    """Whether the current GPU has them."""
    return _capability(triton.runtime.driver.active.get_current_device()) == 90


@lru_cache(maxsize=16)
def _capability(device: int) -> int:
    """Of the current GPU, `device`."""
    return int(triton.runtime.driver.active.get_current_target().arch)


def described() -> str:
    number = ".".join(map(str, VERSION)) or "none"
    return f"triton {triton.__version__}, ptxas {number} ({PATH})"
