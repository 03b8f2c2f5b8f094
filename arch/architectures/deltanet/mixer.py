r"""DeltaNet: linear attention that writes by the delta rule, without decay, behind a short convolution.

    [q, k, v] = silu(conv(x W));   q, k / their length;   beta = sigmoid(x W_b)
    S_t = (I - beta_t k_t^T k_t) S_{t-1} + beta_t k_t^T v_t;   o_t = q_t S_t / sqrt(p)   S_t in R^{p x p_v}, per head
    y = concat(RMSNorm(o)) W_o

q, k: [B, T, H, p], p = key_dim; v: [B, T, H, p_v], p_v = expand_v p; beta: [B, T, H]. conv and norm are as in
gated_deltanet, `negative_eigenvalues` too.
Source: Parallelizing Linear Transformers with the Delta Rule (Yang et al. 2024), section 3, and its public code,
which scales q.
Deviations: the projections start normal(0, init_std), the convolution by nn.Conv1d's rule.
"""

from __future__ import annotations

from ..common.delta import DeltaMixer


class DeltaNetMixer(DeltaMixer):
    """The mixer that the delta rule's architectures share, as it is."""
