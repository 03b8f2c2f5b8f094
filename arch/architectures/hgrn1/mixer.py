r"""HGRN1: a gated linear RNN on single channels, its state a complex number each that rotates as it fades.

    c = silu(x W_i) in C^d;   lam = b + (1 - b) sigmoid(x W_f) in R^d;   theta in R^d, learned
    h_t = lam_t e^{i theta} h_{t-1} + (1 - lam_t) c_t                    h_t in C^d
    g = sigmoid(x W_g) in R^{2d};   y = Norm(g * [re h, im h]) W_o

x: [B, T, d]; W_i, W_g: [d, 2d], re and im of a channel side by side; W_f: [d, d]; W_o: [2d, d]. b in [0, 1)^d is the
layer's lower bound (forget_gates.py). theta starts from 10000^(-2c/d), c = 0 .. d-1, and does not depend on the data.
The state is 2d real numbers, in fp32.

Source: HGRN (Qin et al. 2023), section 3: eq. 3 and the output gate after it.
Deviations: no biases, and the norm is the configuration's (srms), where the paper has an affine LayerNorm, so that the
linear models differ in their mixers alone (norm="layer" gives it). The gate comes before the norm and is a sigmoid, as
the paper writes; the authors' first code has silu after it.

Ablations of HGRN: `lower_bound` and `input_gate` as in forget_gates.py (tables 8 to 10); `output_gate` off: no g
(table 9); `hgrn1_state: real`: no theta and nothing else changed, so that the two numbers of a channel share their
forget gate (table 11: "w/o complex means remove theta"); `data_dependent_theta`: theta_t = theta + x W_theta, W_theta
[d, d], which starts about the fixed angles (table 11; the paper gives no formula).
Of HGRN2: `hgrn1_state: real_2d`: no theta, and each of the 2 d numbers has a forget gate and a lower bound of its own,
W_f [d, 2d] (table 1; docs/research/hgrn2-tables.md says what its printed sizes contain). `narrow`: c, h and g in R^d,
no theta, W_o [d, d]. `expansion` (table 2; of narrow states): c, lam and g are n d wide, n = `expand_ratio`, from the
cheap projections in expansions.py, the n states of a channel have the same b, as in HGRN2's eq. 2 (d numbers a layer),
and y = Norm(sum over n of g * h) W_o. Activations are HGRN1's throughout, where HGRN2's eq. 1 has none on the input and
silu on the output gate. The state is n d numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from ...model.cache import LayerCache
from ...model.mixer import Stream
from ...model.norms import Norm
from ...ops import scan
from ...ops.common import accumulator, full_precision
from ...ops.fused.linear import fused_linear
from ...ops.fused.pointwise import gated_product
from ..common.forget_gates import Forget, HGRNMixer, opened
from .expansions import EXPANSIONS, Expansion
from .shape import inner_width, lower_bounds, numbers_a_gate, projections

if TYPE_CHECKING:
    from ...config import ModelConfig

MIXING_CHANNELS = 16  # at a time in `token_mixing`, which takes T^2 numbers for each


class HGRN1Mixer(HGRNMixer):
    time_scales: ClassVar[tuple[str, ...]] = ("theta",)

    @classmethod
    def bound_width(cls, config: ModelConfig) -> int:
        return lower_bounds(config)

    @classmethod
    def states_a_bound(cls, config: ModelConfig) -> int:
        return int(config.options.expand_ratio)

    def __init__(self, config: ModelConfig, layer: int) -> None:
        d, widths = config.d_model, projections(config)
        cheap = config.options.expansion in EXPANSIONS
        super().__init__(config, layer, {} if cheap else widths, inner_width(config))
        if cheap:
            expand = EXPANSIONS[config.options.expansion]
            self.project.update({name: expand(d, config.options.expand_ratio) for name in widths})
        assert config.norm is not None
        self.norm = Norm(config.norm, inner_width(config), config.norm_eps)
        self.theta = nn.Parameter(torch.empty(d)) if config.options.hgrn1_state == "complex" else None
        self.pairs = numbers_a_gate(config) == 2

    def reset_own_parameters(self, generator: torch.Generator) -> None:
        if self.theta is not None:
            channels = torch.arange(self.config.d_model, dtype=torch.float64)
            with torch.no_grad():
                self.theta.copy_(10_000.0 ** (-2 * channels / self.config.d_model))
        for projection in self.project.values():
            if isinstance(projection, Expansion):
                projection.reset_parameters(self.config.matrix_std, generator)

    def angles(self, x: Tensor, stream: Stream, projected: Tensor | None = None) -> Tensor | None:
        """theta, [D] or [B, T, D]; 0 at padded tokens, which must not rotate the state. projected: x W_theta, if it is
        known."""
        if self.theta is None:
            return None
        theta: Tensor = self.theta
        if self.config.options.data_dependent_theta:
            theta = theta + (self.project["angle"](x) if projected is None else projected)
        return theta if stream.padding_mask is None else stream.mask(theta.expand(*x.shape[:2], -1))

    def operands(
        self, x: Tensor, stream: Stream, projected: dict[str, Tensor] | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """log lam and the input gate, both [B, T, D], and the angles."""
        projected = projected or {}
        forget = self.forget(x, stream, projected.get("forget"))
        gate = self.input_gate(x, stream, projected.get("input_gate"))
        log_decay, complement = opened(*(forget if isinstance(forget, tuple) else (forget,)))
        return log_decay, complement if gate is None else gate, self.angles(x, stream, projected.get("angle"))

    def mix(self, x: Tensor, stream: Stream, cache: LayerCache) -> tuple[Tensor, LayerCache]:
        projected = dict(zip(self.project, fused_linear(x, *self.project.values()), strict=True))
        value = nnf.silu(projected["input"])
        forget: Forget = self.forget(x, stream, projected.get("forget"))
        if self.config.options.input_gate == "tied" and isinstance(forget, tuple):
            theta = self.angles(x, stream, projected.get("angle"))
            value = value.unflatten(-1, (-1, 2)) if self.pairs else value
        else:
            forget, gate, theta = self.operands(x, stream, projected)
            value = gated(gate, value)
        mixed, state = scan(
            forget,
            value,
            theta,
            **self.reading(stream, cache),
        )
        mixed = (mixed.flatten(2) if self.pairs else mixed).to(x.dtype)
        if self.config.options.output_gate:
            mixed = gated_product(mixed, projected["gate"], "sigmoid")
        if self.config.options.expansion != "none":
            mixed = mixed.unflatten(-1, (self.config.options.expand_ratio, -1)).sum(-2)
        return self.norm(mixed), {"state": state}

    def token_mixing(self, x: Tensor, stream: Stream) -> Tensor:
        """[B, 1, T, T]: the real part of eq. 5's A, h = A c, averaged over channels, fp32 (fp64 for fp64). Numbers of a
        pair have the same weights."""
        return channel_mixing(*self.operands(x, stream), stream, self.config.chunk_size)

    def mixing_factors(self, x: Tensor, stream: Stream) -> tuple[Tensor, Tensor] | None:
        """Eq. 7's Lambda and the real part of Theta, averaged over channels."""
        return channel_factors(*self.operands(x, stream), stream, self.config.chunk_size)


def channel_factors(
    log_decay: Tensor, gate: Tensor, theta: Tensor | None, stream: Stream, chunk_size: int
) -> tuple[Tensor, Tensor] | None:
    """The factors of `channel_mixing`, [B, 1, T, T] each: its weights without angles, and the cosines of the angles
    alone where these weights are not 0; None without angles."""
    if theta is None:
        return None
    magnitudes = channel_mixing(log_decay, gate, None, stream, chunk_size)
    turned = theta.double().expand(log_decay.shape).cumsum(1)  # the angle from the first token on, [B, T, D]
    cosines = (turned.cos() @ turned.cos().mT + turned.sin() @ turned.sin().mT) / turned.shape[-1]
    return magnitudes, cosines[:, None].to(magnitudes.dtype) * (magnitudes > 0)


def channel_mixing(log_decay: Tensor, gate: Tensor, theta: Tensor | None, stream: Stream, chunk_size: int) -> Tensor:
    """[B, 1, T, T]: the real part of the weight with which a scan's output reads each earlier input, averaged over
    channels: the scan of each token's input gate alone. The first three: HGRN1Mixer.operands."""
    batch, length, width = gate.shape
    gate = gate.to(log_decay.dtype)
    alone = torch.eye(length, dtype=gate.dtype, device=gate.device)[:, :, None]
    document_starts = None if stream.document_starts is None else stream.document_starts.repeat_interleave(length, 0)
    total = gate.new_zeros(batch * length, length)  # a row has one token's weight at each later token
    for start in range(0, width, MIXING_CHANNELS):
        part = slice(start, start + MIXING_CHANNELS)
        inputs = (gate[:, None, :, part] * alone).flatten(0, 1)
        angles = theta if theta is None else theta[..., part]
        if angles is not None:
            inputs = torch.stack([inputs, torch.zeros_like(inputs)], -1)
            angles = angles if angles.dim() == 1 else angles.repeat_interleave(length, 0)
        states, _ = scan(
            log_decay[..., part].repeat_interleave(length, 0),
            inputs,
            angles,
            chunk_size=chunk_size,
            backend=stream.backend,
            document_starts=document_starts,
        )
        total += (states if angles is None else states[..., 0]).sum(-1)
    return (total / width).unflatten(0, (batch, length)).transpose(1, 2)[:, None]


@full_precision
def gated(gate: Tensor, c: Tensor) -> Tensor:
    """gate * c, [B, T, D] or, where c [B, T, 2 D] is pairs, [B, T, D, 2], in fp32 (fp64 for fp64) whatever c is: the
    scan's outputs take the dtype of its inputs."""
    dtype = accumulator(gate, c)
    gate, c = gate.to(dtype), c.to(dtype)
    return gate * c if c.shape == gate.shape else gate[..., None] * c.unflatten(-1, (-1, 2))
