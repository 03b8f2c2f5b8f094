"""Kernel configurations (arch/kernel_config.py) for the GPU and the assembler that are here."""

from __future__ import annotations

import triton

from ...kernel_config import DecayConfig, GatedConfig, RotaryConfig, decay_by_hopper, gated_config, rotary_config
from .assembler import hopper, trusted_assembler, version_of

CHECKED = ((3, 6), (3, 7))  # Gluon is experimental: with these its kernels' tests passed on an H100
GLUON = version_of(triton.__version__) in CHECKED


def hopper_instructions(exact: bool) -> bool:
    """Whether a kernel may use Hopper's own matrix instructions: never in fp32."""
    return not exact and trusted_assembler() and hopper()


def gated_for_device(key_dim: int, value_dim: int, exact: bool) -> GatedConfig:
    return gated_config(key_dim, value_dim, exact, hopper_instructions(exact))


def rotary_for_device(key_dim: int, value_dim: int, exact: bool) -> RotaryConfig:
    return rotary_config(key_dim, value_dim, exact, hopper_instructions(exact), GLUON)


def decay_by_hopper_here(config: DecayConfig, key_dim: int, value_dim: int, exact: bool) -> bool:
    """As kernel_config's; a configuration that names its kernels asks nothing of the device."""
    own = config.tma is None and hopper_instructions(exact)
    return decay_by_hopper(config, key_dim, value_dim, exact, own)
