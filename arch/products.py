"""In which precision a process multiplies matrices of fp32: in fp32, whatever its environment says."""

from __future__ import annotations

import torch


def multiply_in_fp32() -> None:
    """No TF32, whose products keep 10 bits. NVIDIA's containers set TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1, which PyTorch
    takes for a wish: losses of one study would be of one precision or another by where they were computed."""
    torch.set_float32_matmul_precision("highest")
