"""Kernel configurations (arch/kernel_config.py) for the GPU and the assembler that are here."""

from __future__ import annotations

import torch
import triton

from ...kernel_config import (
    DecayConfig,
    DeltaConfig,
    GatedConfig,
    RotaryConfig,
    decay_by_hopper,
    delta_config,
    gated_config,
    rotary_config,
)
from ..common import constant, warn_once
from .assembler import FIXED, VERSION, hopper, trusted_assembler, version_of

CHECKED = ((3, 6), (3, 7))  # Gluon is experimental: with these its kernels' tests passed on an H100
GLUON = version_of(triton.__version__) in CHECKED


def hopper_instructions(exact: bool) -> bool:
    """Whether a kernel may use Hopper's own matrix instructions: never in fp32. A warning says once what a Hopper GPU
    does without."""
    if exact:
        return False
    warn_of_what_is_off()
    return trusted_assembler() and hopper()


@constant
def switched_off() -> tuple[str, ...]:
    """What of the kernels does not run on the current GPU, why, and what that costs, a line each."""
    if not (torch.cuda.is_available() and hopper()):
        return ()  # what other GPUs lack no package brings
    if not trusted_assembler():
        number, needed = (".".join(map(str, version)) or "none" for version in (VERSION, FIXED))
        return (
            f"Hopper's own matrix instructions are off, and with them the kernels in Gluon: ptxas {number} is older "
            f"than {needed} (pip install nvidia-cuda-nvcc); without them Mamba2's operation takes 1.5 times as long, "
            "TNL's 1.8 times",
        )
    if not GLUON:
        return (
            f"kernels in Gluon are off: Triton {triton.__version__} is none of those that they were checked with, "
            f"{' and '.join('.'.join(map(str, version)) for version in CHECKED)}; steps of small models take 4 to 20 % "
            "longer without them",
        )
    return ()


@constant
def warn_of_what_is_off() -> None:
    for line in switched_off():
        warn_once(line)


def gated_for_device(key_dim: int, value_dim: int, exact: bool) -> GatedConfig:
    return gated_config(key_dim, value_dim, exact, hopper_instructions(exact))


def delta_for_device(key_dim: int, value_dim: int, exact: bool) -> DeltaConfig:
    return delta_config(key_dim, value_dim, exact, hopper_instructions(exact))


def rotary_for_device(key_dim: int, value_dim: int, exact: bool) -> RotaryConfig:
    return rotary_config(key_dim, value_dim, exact, hopper_instructions(exact), GLUON)


def decay_by_hopper_here(config: DecayConfig, key_dim: int, value_dim: int, exact: bool) -> bool:
    """As kernel_config's; a configuration that names its kernels asks nothing of the device."""
    own = config.tma is None and hopper_instructions(exact)
    return decay_by_hopper(config, key_dim, value_dim, exact, own)
