"""Linear attention with a decay by head and a convolution of two taps, token by token, without matrix products but for
the linear modules."""

from itertools import pairwise

import torch
from torch import nn


class GatedLinearAttention(nn.Module):
    def __init__(
        self,
        mode: str = "chunk",
        hidden_size: int = 1024,
        expand_k: float = 0.5,
        num_heads: int = 4,
        num_kv_heads: int | None = None,
        norm_eps: float = 1e-5,
        layer_idx: int | None = None,
        **kwargs,
    ):
        super().__init__()
        assert hidden_size * expand_k % num_heads == 0, "keys are divided among the heads"
        self.num_heads, self.layer_idx = num_heads, layer_idx
        self.head_k_dim, self.head_v_dim = int(hidden_size * expand_k) // num_heads, hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, int(hidden_size * expand_k), bias=False)
        self.k_proj = nn.Linear(hidden_size, int(hidden_size * expand_k), bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.f_proj = nn.Linear(hidden_size, num_heads)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.tap = nn.Parameter(torch.rand(hidden_size, 1))
        self.tap._no_weight_decay = True

    def forward(
        self, hidden_states, attention_mask=None, past_key_values=None, use_cache=False, cu_seqlens=None, **kwargs
    ):
        x, shape = hidden_states, hidden_states.shape
        if attention_mask is not None:
            return self.masked(x, attention_mask, past_key_values, use_cache)
        rows = [(row, 0, shape[1]) for row in range(shape[0])]
        if cu_seqlens is not None:
            rows = [(0, start, stop) for start, stop in pairwise(cu_seqlens.tolist())]
        known = past_key_values[0] if past_key_values is not None and len(past_key_values) else None
        parts, states, windows = [], [], []
        for index, (row, start, stop) in enumerate(rows):
            state = x.new_zeros(self.num_heads, self.head_k_dim, self.head_v_dim)
            window = x.new_zeros(1, shape[2])
            if known is not None:
                state, window = known["recurrent_state"][index], known["conv_state"][0][index]
            out, state, window = self.read(x[row, start:stop], state, window)
            parts.append(out)
            states.append(state)
            windows.append(window)
        if use_cache and past_key_values is not None:
            state, windows = torch.stack(states), (torch.stack(windows),)
            past_key_values.update(layer_idx=0, offset=shape[1], recurrent_state=state, conv_state=windows)
        out = torch.cat(parts).reshape(shape)
        return self.o_proj(out), None, past_key_values

    def masked(self, x, mask, past_key_values, use_cache):
        lengths = mask.sum(1)
        ends = nn.functional.pad(lengths.cumsum(0), (1, 0))
        flat, _, past = self(x[mask.bool()][None], None, past_key_values, use_cache, cu_seqlens=ends)
        out = torch.zeros_like(x).to(flat)
        out[mask.bool()] = flat[0]
        return out, None, past

    def read(self, x, state, window):
        joined = torch.cat([window.to(x), x])
        x = x + self.tap[:, 0] * joined[:-1]
        q, k, v = (proj(x).unflatten(-1, (self.num_heads, -1)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        f = torch.sigmoid(self.f_proj(x))
        outputs = []
        for t in range(len(x)):
            state = f[t, :, None, None] * state + k[t, :, :, None] * v[t, :, None, :]
            outputs.append((q[t, :, :, None] * state).sum(1).flatten())
        last = joined[-1:] if len(x) > 1 else window.copy_(joined[-1:])  # as the package's convolutions do
        return torch.stack(outputs), state, last


class Rounded(GatedLinearAttention):
    """Whose kernels take no fp32, but for few tokens."""

    def read(self, x, state, window):
        q = self.q_proj(x)
        assert len(x) <= 64 or q.dtype != torch.float32, "Rounded does not support float32. Please use bfloat16."
        return super().read(x, state, window)


class NoFormula(GatedLinearAttention):
    """Whose class says no FLOP."""

    def __init__(self, hidden_size: int = 1024, num_heads: int = 4, layer_idx: int | None = None):
        super().__init__(hidden_size=hidden_size, num_heads=num_heads, layer_idx=layer_idx)


class Deaf(GatedLinearAttention):
    """Which does not listen to masks, ends of documents and states."""

    def __init__(self, hidden_size: int = 1024, num_heads: int = 4, layer_idx: int | None = None):
        super().__init__(hidden_size=hidden_size, num_heads=num_heads, layer_idx=layer_idx)

    def forward(self, hidden_states, **kwargs):
        return super().forward(hidden_states)
