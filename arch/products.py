"""The precision of products of fp32 matrices: fp32, whatever the environment says."""

from __future__ import annotations

import torch


def multiply_in_fp32() -> None:
    """Turn off TF32, whose products keep 10 bits. NVIDIA's containers set TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1, which
    turns it on: the losses of a study would then depend on where they were computed."""
    torch.set_float32_matmul_precision("highest")
