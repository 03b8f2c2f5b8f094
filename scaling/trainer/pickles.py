"""DeepSpeed's states are pickles, and a pickle can name any code: here they are read as tensors and plain values."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

ALWAYS, NEVER = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"  # PyTorch's own


@contextmanager
def as_weights() -> Iterator[None]:
    """Every torch.load inside, of any library and whatever it asks for, reads tensors, plain values and the three
    classes that DeepSpeed's states hold; a file with anything else raises pickle.UnpicklingError and runs nothing."""
    from deepspeed.runtime.fp16.loss_scaler import LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    before = {name: os.environ.pop(name, None) for name in (ALWAYS, NEVER)}
    os.environ[ALWAYS] = "1"
    try:
        with torch.serialization.safe_globals([LossScaler, ZeroStageEnum, fragment_address]):
            yield
    finally:
        del os.environ[ALWAYS]
        os.environ.update({name: value for name, value in before.items() if value is not None})
