"""A model's loss on each token of fixed windows over a text: what all losses and perplexities here are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

    from .task import LoadedModel

MAX_LOGITS = 1 << 28  # of one slice: 1 GiB in fp32


def token_nats(model: LoadedModel, rows: np.ndarray) -> np.ndarray:
    """float32 [B, T]: -log p of each token of rows [B, T + 1] but the first, given those before it in its row."""
    import torch

    from arch.model.layout import check_ids, ids_checked

    ids = torch.from_numpy(rows)
    check_ids(ids, model.config.vocab_size)  # here, where no GPU is waited for
    with ids_checked():
        found: np.ndarray = nats_of(model, ids.to(model.device)).cpu().numpy()
    return found


def nats_of(model: LoadedModel, ids: Tensor) -> Tensor:
    """`token_nats` of ids that lie on the model's device, and stay there: float32 [B, T].

    The head runs over slices, so that the logits of a long row of a large vocabulary need not lie in memory at once.
    """
    import torch
    import torch.nn.functional as nnf

    nats = torch.empty(ids.shape[0], ids.shape[1] - 1, dtype=torch.float32, device=ids.device)
    step = max(1, MAX_LOGITS // (len(ids) * model.config.vocab_size))
    with model.reading():
        hidden, _ = model.model.decoder(ids[:, :-1].contiguous(), None, None, None, False, None)
        for start in range(0, nats.shape[1], step):
            logits = model.model.lm_head(hidden[:, start : start + step])
            with model.meter.span(), torch.autocast(logits.device.type, enabled=False):
                targets = ids[:, 1 + start : 1 + start + logits.shape[1]].flatten()
                losses = nnf.cross_entropy(logits.float().flatten(0, 1), targets, reduction="none")
            nats[:, start : start + step] = losses.view(len(ids), -1)
    return nats
