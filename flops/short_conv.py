"""The costs of Mamba's short convolution, element-wise and so without matrix products. Imports no torch."""

from __future__ import annotations

from arch.config import ModelConfig

from .activations import F

TAPS = 4  # of the convolution that has a kernel


def window(cfg: ModelConfig, channels: int) -> dict[str, int]:
    """The inputs that decoding keeps."""
    return {"conv": (cfg.options.conv_width - 1) * channels}


def parameters(cfg: ModelConfig, channels: int) -> int:
    """Weights and biases."""
    return int(cfg.options.conv_width + 1) * channels


def weights(cfg: ModelConfig, channels: int) -> int:
    return int(cfg.options.conv_width) * channels


def activations(cfg: ModelConfig, T: int, a: int, channels: int) -> float:
    """Bytes of its input in fp32 with the steps before it, the sum before silu, and silu's result."""
    return F * channels * (T + cfg.options.conv_width - 1) + 2 * a * T * channels


def by_kernels(cfg: ModelConfig, T: int, a: int, channels: int) -> float:
    """Bytes of its result; its input is a part of what the projection gives."""
    return a * T * channels if cfg.options.conv_width <= TAPS else activations(cfg, T, a, channels)
