r"""cosFormer2: linear attention without decay, positions by cosines (LRPE) and one Toeplitz filter (Tpe).

    q, k = silu(x W_q), silu(x W_k);  q'_t = [q_t cos(t theta), q_t sin(t theta)], k' likewise;  v = x W_v
    S_t = S_{t-1} + k'_t^T v_t;  o_t = q'_t S_t;   y = (Norm(concat o) * sigmoid(x W_down W_up)) W_o

Source: Scaling Laws for Linear Complexity LMs, eq. 16-17 (eq. 17 omits the position t). theta is learned per layer and
head, starting from 10000^(-2 c / d) over all d channels, so that no two heads share a frequency. Tpe, applied once
after the embedding, is `causal_filter` with poles fixed at time constants log-spaced from 1 to the context length.
Deviations: as in TNL the gate reads the normalised x and W_o is applied last; the embedding is kept beside the filter
(`tpe_residual`; the paper replaces it by the filter's output); the filter's form is ours (see causal_filter); the norms
carry no weights (the paper's parameter counts hint at three LayerNorms a layer, norm="layer").
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from ...model.cache import LayerCache
from ...model.mixer import PositionEncoding, Stream
from ...model.positions import cosine_pairs, rotation
from ...ops import causal_filter, decay_attention
from ...ops.fused.linear import fused_linear
from ..common.low_rank_gate import LowRankGatedMixer

if TYPE_CHECKING:
    from ...config import ModelConfig

TPE_GAIN = 0.5  # of the filter over its input, at initialisation


def initial_angles(config: ModelConfig) -> Tensor:
    """The initial theta, fp32: 10000^(-2c/d) over all d channels [H, p] (lrpe="full"), or 10000^(-2c/p), c < p / 2,
    [p / 2] for every head (lrpe="half", the authors' later code)."""
    width = config.d_model if config.options.lrpe == "full" else config.head_dim
    channels = torch.arange(width if config.options.lrpe == "full" else width // 2, dtype=torch.float64, device="cpu")
    theta = (10_000.0 ** (-2 * channels / width)).float()
    return theta.reshape(config.n_heads, config.head_dim) if config.options.lrpe == "full" else theta


class CosFormer2Mixer(LowRankGatedMixer):
    keys_a_channel: ClassVar[int] = 2
    time_scales: ClassVar[tuple[str, ...]] = ("theta",)

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.theta = nn.Parameter(torch.empty_like(initial_angles(config))) if config.options.theta_learned else None

    def reads_projections(self) -> bool:
        return super().reads_projections() and self.config.options.lrpe == "full"

    @staticmethod
    def position_encoding(config: ModelConfig) -> PositionEncoding:
        return Tpe(config)

    def reset_own_parameters(self, generator: torch.Generator) -> None:
        if self.theta is not None:
            with torch.no_grad():
                self.theta.copy_(initial_angles(self.config))

    def angles(self, device: torch.device) -> Tensor:
        """theta [H, p], or [p / 2] for lrpe="half"."""
        return initial_angles(self.config).to(device) if self.theta is None else self.theta

    def _mix(
        self, query: Tensor, key: Tensor, value: Tensor, stream: Stream, cache: LayerCache, *more: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The linear attention of x W_q and x W_k [B, T, d] over value [B, T, H, any width], and its state."""
        query, key = self.heads(query), stream.mask(self.heads(key))
        theta, activation = self.angles(value.device), "silu"
        angles = (theta, stream.positions) if theta.dim() == 2 else None
        if angles is None:  # half of the channels are rotated, by the same angles in all heads
            query, key, activation = nnf.silu(query), nnf.silu(key), ""
            cos, sin = (x[..., None, :] for x in rotation(theta, stream.positions))
            query, key = cosine_pairs(query, cos, sin), cosine_pairs(key, cos, sin)
        return decay_attention(query, key, value, **self.reading(stream, cache), angles=angles, activation=activation)

    def forget_gates(self, x: Tensor, stream: Stream) -> Tensor:
        """1 everywhere, [B, T, H]: nothing decays."""
        return torch.ones(*x.shape[:2], self.config.n_heads, device=x.device)

    def token_mixing(self, x: Tensor, stream: Stream) -> Tensor:
        """q'_t . k'_s, [B, H, T, T], without the Tpe before the layers."""
        query, key, _ = fused_linear(x, *self.project.values())
        return self._mix(query, key, self.unit_values(x), stream, {})[0].transpose(1, 2)


class Tpe(PositionEncoding):
    """x + causal_filter(x) (or the filter alone), once after the embedding; d x e parameters."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config, self.slowest = config, float(config.options.tpe_context)
        self.mix = nn.Parameter(torch.empty(config.d_model, config.options.tpe_dim))
        # log(1 / tau_j): any real number is a decay
        self.log_rate = nn.Parameter(torch.empty(config.options.tpe_dim)) if config.options.tpe_learned_decay else None

    def log_decays(self, device: torch.device | None = None) -> Tensor:
        """log lam_j = -1 / tau_j [e], tau_j from 1 token to `tpe_context` (the context trained at), evenly in log (at
        the start, where they are learned)."""
        if self.log_rate is not None:
            return -self.log_rate.exp()
        share = torch.linspace(0, 1, self.mix.shape[1], dtype=torch.float32, device=device)
        return -(self.slowest**-share)

    def reset_own_parameters(self, generator: torch.Generator) -> None:
        """Initialise as normal, each pole scaled by its own gain: on white input a state s_j has sqrt(1 / (1 -
        lam_j^2)) times its B's standard deviation, so the filter starts at half the embedding's size for any e and
        context."""
        if self.log_rate is not None:
            with torch.no_grad():
                share = torch.linspace(0, 1, len(self.log_rate))
                self.log_rate.copy_(-share * math.log(self.slowest))
        scale = TPE_GAIN * (-torch.expm1(2 * self.log_decays()) / self.mix.shape[1]).sqrt()
        with torch.no_grad():
            self.mix.normal_(generator=generator).mul_(scale)

    def forward(self, x: Tensor, stream: Stream, cache: LayerCache) -> tuple[Tensor, LayerCache]:
        """[B, T, d] -> [B, T, d] and the filter's state, like a mixer."""
        filtered, state = causal_filter(
            stream.mask(x),
            self.mix,
            self.log_decays(x.device),
            initial_state=cache.get("state"),
            chunk_size=self.config.chunk_size,
            backend=stream.backend,
            document_starts=stream.document_starts,
        )
        return x + filtered if self.config.options.tpe_residual else filtered, {"state": state}
