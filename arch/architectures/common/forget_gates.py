r"""The gates that HGRN1 and HGRN2 share, and their ablations (HGRN, tables 8 to 10).

    f_t = b + (1 - b) sigmoid(x_t W_f)        b in [0, 1)^d: the layer's lower bound, gamma in R^{L x d} learned
    P = softmax(gamma) over the layers l = 0 .. L-1

`lower_bound` (tables 8 and 10):
    increasing  b_l = cumsum(P)_l - P_0, from 0 in the first layer; starts at l / L (gamma = 0). HGRN, section 3.2
    off         b = 0, no gamma
    random      b_l = sigmoid(gamma_l), each layer on its own; starts uniform within 1/2L .. 1 - 1/2L per layer and
                channel: as wide as increasing's l / L, in no order (half a step higher, as a sigmoid is never 0)
    decreasing  the same sum from the top layer down: b_l = sum over m >= l of P_m, less P_{L-1}, 0 in the last layer
    only        f = cumsum(P)_l - P_l / 2, the same at every token; no W_f. Starts at (l + 1/2) / L. This project takes
                the middle of each step: with b_l as above the first layer would have f = 0, no memory and no gradient
                to its time scale, and without the subtraction the last layer f = 1, whose tied input 1 - f is 0
    one         f = 1, a sum of all inputs; no W_f, no gamma. For `own` input gates: tied ones would be 0. "Removing the
                forget gate" of table 8, for which the paper has no formula
`input_gate` (table 9):
    tied        1 - f
    own         sigmoid(x W_ig), a projection of its own: HGRN, eq. 1
    none        1 ("w/o input gate means to remove the 1 - lambda term")

With one layer softmax leaves nothing to learn: f has no bound, and `only` is f = 1/2.
Source: Hierarchically Gated Recurrent Neural Network (Qin et al. 2023).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...model.mixer import Mixer, Stream
from ...ops.common import accumulator, full_precision
from ...ops.forget_gate import forget_gate

if TYPE_CHECKING:
    from ...config import ModelConfig

Forget = Tensor | tuple[Tensor, Tensor]  # log f, or the logits and the bound of f = b + (1 - b) sigmoid(logits)


@full_precision
def lower_bounds(gamma: Tensor, kind: str = "increasing") -> Tensor:
    """b (`only`: f) of all layers [L, d], within 0 .. 1, fp32 (fp64 for fp64), from gamma [L, d].

    The 2024 paper drops the subtraction of P_0; its top layer would have f = 1 and k = 0.
    """
    gamma = gamma.to(accumulator(gamma))
    if kind == "random":
        return torch.sigmoid(gamma)
    if kind == "decreasing":
        return lower_bounds(gamma.flip(0)).flip(0)
    shares = gamma.softmax(0)
    return shares.cumsum(0) - (shares / 2 if kind == "only" else shares[0])


def reset_gamma(gamma: Tensor, kind: str, generator: torch.Generator) -> None:
    """Initialise gamma in place: 0; for `random` the logit of a uniform draw within 1/2L .. 1 - 1/2L."""
    margin = 0.5 / len(gamma)
    with torch.no_grad():
        if kind == "random":
            gamma.uniform_(margin, 1 - margin, generator=generator).logit_()
        else:
            gamma.zero_()


@full_precision
def opened(gate: Tensor, bound: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """log f and 1 - f, fp32 (fp64 for fp64), from log f, or from logits and bound."""
    dtype = accumulator(gate, bound)
    gate = gate.to(dtype)
    return (gate, -gate.expm1()) if bound is None else forget_gate(gate, bound.to(dtype))


class HGRNMixer(Mixer):
    @classmethod
    def bound_width(cls, config: ModelConfig) -> int:
        """Number of lower bounds of a layer's forget gates."""
        return config.d_model

    @classmethod
    def states_a_bound(cls, config: ModelConfig) -> int:
        """Number of forget gates with the same lower bound; a layer has bound_width times as many gates."""
        return 1

    @classmethod
    def gamma_shape(cls, config: ModelConfig) -> tuple[int, int] | None:
        return (config.n_layers, cls.bound_width(config)) if config.options.learns_bounds else None

    @classmethod
    def bounds(cls, config: ModelConfig, gamma: Tensor) -> Tensor:
        return lower_bounds(gamma, config.options.lower_bound)

    @classmethod
    def reset_gamma(cls, config: ModelConfig, gamma: Tensor, generator: torch.Generator) -> None:
        reset_gamma(gamma, config.options.lower_bound, generator)

    def forget(self, x: Tensor, stream: Stream, logits: Tensor | None = None) -> Forget:
        """log f [B, T, D], or its logits [B, T, D] (x W_f, unless they are given) and bound [D], D the layer's forget
        gates. A padded token's gate is 1: log f = 0 and 1 - f = 0."""
        options, copies = self.config.options, self.states_a_bound(self.config)
        fixed = float(options.lower_bound == "one")
        bound = (
            stream.bound(self.layer)
            if options.learns_bounds
            else x.new_full((self.bound_width(self.config),), fixed, dtype=accumulator(x))
        )
        bound = bound if copies == 1 else bound.repeat(copies)  # the n states of a channel have the same bound
        if not options.gates_forget:
            log_f = bound.clamp(min=torch.finfo(bound.dtype).tiny).log()
            return stream.mask(log_f.expand(*x.shape[:2], -1))
        logits = self.project["forget"](x) if logits is None else logits
        return stream.mask(logits, math.inf), bound

    def input_gate(self, x: Tensor, stream: Stream, logits: Tensor | None = None) -> Tensor | None:
        """The input gate [B, T, D], 0 at padded tokens; None where it is tied: 1 - f. logits: x W_ig, if it is
        known."""
        if self.config.options.input_gate == "tied":
            return None
        if self.config.options.input_gate == "none":
            return stream.mask(
                x.new_ones(*x.shape[:2], self.bound_width(self.config) * self.states_a_bound(self.config))
            )
        logits = self.project["input_gate"](x) if logits is None else logits
        return stream.mask(torch.sigmoid(logits))

    def forget_gates(self, x: Tensor, stream: Stream) -> Tensor:
        """f [B, T, D], within 0 .. 1, fp32 (fp64 for fp64), 1 at padded tokens; for complex states the modulus."""
        gate = self.forget(x, stream)
        return opened(*(gate if isinstance(gate, tuple) else (gate,)))[0].exp()
