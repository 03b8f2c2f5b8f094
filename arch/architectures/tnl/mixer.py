r"""TNL (TransNormerLLM): linear attention with a fixed decay per head and layer.

    q, k = silu(x W_q), silu(x W_k);  v = x W_v;   S_t = lam S_{t-1} + k_t^T v_t;  o_t = q_t S_t
    G = sigmoid(x W_down W_up);   y = (Norm(concat o) * G) W_o

Source: Scaling Laws for Linear Complexity LMs, eq. 9. Deviations: the gate reads the normalised x, as the authors'
code does (the paper writes the un-normalised one); W_o, declared but not written in eq. 9, is applied last. The norm
is over all d channels, not per head, so any constant scale of q cancels (up to its eps). v has no activation, as the
paper writes; later code of the authors puts silu on it (`value_activation`). The paper has one decay for each head;
here its slope in layer l of L has the factor 1 - l / (L - 1) + 1e-5, as in the authors' released models
(OpenNLPLab's TransNormerLLM and lightning-attention), so that deeper layers remember longer. The paper names no
slopes: `decay_slopes` is `paper` for ALiBi's, as in its authors' code, of which the fastest depends on the number of
heads, or `fixed` for slopes of which the fastest is the same at every size (decays.py).

Decay types (`decay`; the paper's section 5.3 compares them across architectures, here all else is equal):
`independent`, above; `none`, lam = 1; `dependent`, this project's after Mamba2's step sizes, for each token and head:

    lam_t = exp(-softplus(x_t W_a + b)),   softplus(b) = -log lam,   W_a in R^{d x H}

b is a constant: a token with x W_a = 0 has the decay of `independent`, where training starts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...kernel_config import decay_by_hopper, decay_config
from ...model.cache import LayerCache
from ...model.mixer import Stream
from ...ops import decay_attention
from ...ops.fused.linear import fused_linear
from ...ops.fused.pointwise import softplus
from ..common.fixed_decays import FixedDecays
from ..common.low_rank_gate import LowRankGatedMixer
from .decays import log_decays

if TYPE_CHECKING:
    from ...config import ModelConfig


class TNLMixer(FixedDecays, LowRankGatedMixer):
    def __init__(self, config: ModelConfig, layer: int) -> None:
        self.kind = config.options.decay
        super().__init__(config, layer, {"decay": config.n_heads} if self.kind == "dependent" else None)
        decays = log_decays(layer, config.n_layers, config.n_heads, config.options.decay_slopes)
        if self.kind == "dependent":
            decays = [math.log(math.expm1(-decay)) for decay in decays]
        self.set_decays(decays)  # log lam, or b

    def reads_silu(self, stream: Stream) -> bool:
        """Kernels read the product's silu only where decays are constant and Hopper's kernels run."""
        constant = self.kind == "independent" and stream.document_starts is None
        shape = self.config.head_dim, self.config.head_dim, False
        return constant and super().reads_silu(stream) and decay_by_hopper(decay_config(*shape), *shape, hopper=True)

    def _mix(
        self, query: Tensor, key: Tensor, value: Tensor, stream: Stream, cache: LayerCache, *more: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The linear attention of x W_q and x W_k [B, T, d] over value [B, T, H, any width], and its state; more: x W_a
        of decays that depend on the data."""
        return decay_attention(
            self.heads(query),
            stream.mask(self.heads(key)),
            value,
            self._log_decays(value, stream, *more),
            **self.reading(stream, cache),
            activation="silu",
        )

    def _log_decays(self, x: Tensor, stream: Stream, step: Tensor | None = None) -> Tensor | None:
        """[H], or [B, T, H] where there is padding or `step`, x W_a [B, T, H]; None: nothing decays."""
        if self.kind == "none":
            return None
        decays = self.decays_like(x)
        if step is not None:
            return stream.mask(-softplus(step, decays))
        return decays if stream.padding_mask is None else stream.mask(decays.expand(*x.shape[:2], -1))

    def forget_gates(self, x: Tensor, stream: Stream) -> Tensor:
        """lam of each head [B, T, H], the same for all tokens unless it depends on them."""
        log_decay = self._log_decays(x, stream, *(self.project[name](x) for name in self.project if name == "decay"))
        shape = *x.shape[:2], self.config.n_heads
        return torch.ones(shape, device=x.device) if log_decay is None else log_decay.exp().expand(shape)

    def token_mixing(self, x: Tensor, stream: Stream) -> Tensor:
        """q_t . k_s times the decays from s to t, [B, H, T, T]."""
        query, key, _, *more = fused_linear(x, *self.project.values())
        return self._mix(query, key, self.unit_values(x), stream, {}, *more)[0].transpose(1, 2)
