"""Whole models against the papers' equations, written out token by token in float64 from the trained-in weights alone.

Nothing of arch but the parameters is used here: a gate on the wrong input, a norm in the wrong place or a decay of the
wrong layer shows as a difference of order one.
"""

import math

import pytest
import torch
from torch import Tensor

from arch.config import ARCHS, ModelConfig
from arch.model.lm import build_model

CONFIG = {"d_model": 24, "n_layers": 3, "n_heads": 3, "d_ffn": 40, "vocab_size": 61, "context_length": 37}
SLOPES = {
    "paper": (2.0**-4, 2.0**-8, 2.0**-2),  # ALiBi, three heads: those of two, then every second one of four
    "fixed": (2.0**-0.5, 2.0**-3, 2.0**-5.5),
}


SWIGLU = ("llama", "transformer", "gla", "retnet", "deltanet", "gated_deltanet", "kimi_delta")


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def norm(x: Tensor, weight: Tensor | None = None) -> Tensor:
    """[T, d]"""
    out = x / torch.sqrt((x**2).sum(-1, keepdim=True) / x.shape[-1] + 1e-6)
    return out if weight is None else out * weight


class Reference:
    """One sequence through the equations; `self.w` holds the weights by name."""

    def __init__(self, config: ModelConfig, weights: dict[str, Tensor]) -> None:
        self.config, self.w = config, weights
        self.p = config.d_model // config.n_heads

    def logits(self, ids: list[int]) -> Tensor:
        x = self.w["decoder.embedding.weight"][ids]
        if self.config.arch == "cosformer2":
            x = x + self.tpe(x)
        if self.config.arch == "vanilla":
            x = x + self.config.init_std * self.sinusoids(len(x))
        for layer in range(self.config.n_layers):
            at = f"decoder.layers.{layer}."
            inner = self.normed(x, at + "mixer_norm")
            x = x + getattr(self, self.config.arch)(inner, layer, at + "mixer.")
            if self.config.arch.startswith("mamba"):
                continue
            inner = self.normed(x, at + "channel_norm")
            up = inner @ self.w[at + "channel.up.weight"].T
            if self.config.arch == "vanilla":
                hidden = up.clamp(min=0)
            else:
                gate = inner @ self.w[at + "channel.gate.weight"].T
                hidden = up * (silu(gate) if self.config.arch in SWIGLU else gate)
            x = x + hidden @ self.w[at + "channel.down.weight"].T
        return self.normed(x, "decoder.norm") @ self.w["decoder.embedding.weight"].T

    def normed(self, x: Tensor, name: str) -> Tensor:
        if self.config.norm == "layer":
            return norm(x - x.mean(-1, keepdim=True), self.w[name + ".weight"]) + self.w[name + ".bias"]
        return norm(x, self.w.get(name + ".weight"))

    def project(self, x: Tensor, at: str, name: str) -> list[Tensor]:
        """[T, p] of each head."""
        return list((x @ self.w[f"{at}project.{name}.weight"].T).split(self.p, dim=1))

    def low_rank_gate(self, x: Tensor, at: str) -> Tensor:
        return sigmoid(x @ self.w[at + "gate.down.weight"].T @ self.w[at + "gate.up.weight"].T)

    def rotated(self, v: Tensor, t: int) -> Tensor:
        angles = torch.tensor([t * 10_000.0 ** (-2 * c / self.p) for c in range(self.p // 2)], dtype=torch.float64)
        pairs = torch.complex(v[: self.p // 2], v[self.p // 2 :]) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([pairs.real, pairs.imag])

    def softmax(self, q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
        """Of one head, [T, p]."""
        rows = []
        for t in range(len(q)):
            seen = range(max(0, t - window + 1), t + 1)
            scores = torch.stack([q[t] @ k[s] for s in seen]) / math.sqrt(self.p)
            shares = torch.exp(scores - scores.max())
            rows.append(shares / shares.sum() @ v[seen.start : t + 1])
        return torch.stack(rows)

    def llama(self, x: Tensor, layer: int, at: str) -> Tensor:
        heads = []
        for q, k, v in zip(*(self.project(x, at, name) for name in ("query", "key", "value")), strict=True):
            q, k = (torch.stack([self.rotated(row, t) for t, row in enumerate(rows)]) for rows in (q, k))
            heads.append(self.softmax(q, k, v, len(x)))
        return torch.cat(heads, 1) @ self.w[at + "out.weight"].T

    def sinusoids(self, length: int) -> Tensor:
        d = self.config.d_model
        rates = [10_000.0 ** (-2 * c / d) for c in range(d // 2)]
        rows = [[math.sin(t * w) for w in rates] + [math.cos(t * w) for w in rates] for t in range(length)]
        return torch.tensor(rows, dtype=torch.float64)

    def vanilla(self, x: Tensor, layer: int, at: str) -> Tensor:
        projected = zip(*(self.project(x, at, name) for name in ("query", "key", "value")), strict=True)
        return torch.cat([self.softmax(q, k, v, len(x)) for q, k, v in projected], 1) @ self.w[at + "out.weight"].T

    def transformer(self, x: Tensor, layer: int, at: str) -> Tensor:
        options, heads = self.config.options, []
        queries, keys, values = (self.project(x, at, name) for name in ("query", "key", "value"))
        for head, q in enumerate(queries):
            group = head // (self.config.n_heads // options.n_kv_heads)
            k, v = keys[group], values[group]
            if options.qk_norm:
                q, k = norm(q, self.w[at + "query_norm.weight"]), norm(k, self.w[at + "key_norm.weight"])
            if options.position == "rotary":
                q, k = (torch.stack([self.rotated(row, t) for t, row in enumerate(rows)]) for rows in (q, k))
            heads.append(self.softmax(q, k, v, options.window or len(x)))
        mixed = torch.cat(heads, 1)
        if options.attention_gate:
            mixed = mixed * sigmoid(x @ self.w[at + "project.gate.weight"].T)
        return mixed @ self.w[at + "out.weight"].T

    def tnl(self, x: Tensor, layer: int, at: str) -> Tensor:
        heads = []
        parts = zip(*(self.project(x, at, name) for name in ("query", "key", "value")), strict=True)
        for slope, (q, k, v) in zip(SLOPES[self.config.options.decay_slopes], parts, strict=True):
            log_decay = torch.full((len(x),), -slope * (1 - layer / (self.config.n_layers - 1) + 1e-5)).double()
            if self.config.options.decay == "dependent":  # softplus(b) = -log lam
                step = x @ self.w[at + "project.decay.weight"][len(heads)]
                log_decay = -torch.log1p(torch.exp(step + torch.log(torch.expm1(-log_decay))))
            if self.config.options.decay == "none":
                log_decay = torch.zeros_like(log_decay)
            rows = []
            for t in range(len(x)):
                weights = [log_decay[s + 1 : t + 1].sum().exp() * (silu(q[t]) @ silu(k[s])) for s in range(t + 1)]
                rows.append(torch.stack(weights) @ v[: t + 1])
            heads.append(torch.stack(rows))
        return (norm(torch.cat(heads, 1)) * self.low_rank_gate(x, at)) @ self.w[at + "out.weight"].T

    def gla(self, x: Tensor, layer: int, at: str) -> Tensor:
        heads, low = self.config.n_heads, x @ self.w[at + "project.forget.weight"].T
        gates = sigmoid(low @ self.w[at + "forget.weight"].T + self.w[at + "forget_bias"])
        q, k, v, r = (
            (x @ self.w[f"{at}project.{name}.weight"].T).chunk(heads, 1) for name in ("query", "key", "value", "gate")
        )
        columns = []
        for h, f in enumerate((gates ** (1 / self.config.options.gate_temperature)).chunk(heads, 1)):
            state, rows = torch.zeros(self.p // 2, self.p, dtype=torch.float64), []
            for t in range(len(x)):
                state = torch.diag(f[t]) @ state + torch.outer(k[h][t], v[h][t])
                rows.append(q[h][t] @ state)
            columns.append(norm(torch.stack(rows), self.w[at + "norm.weight"]) * silu(r[h]))
        return torch.cat(columns, 1) @ self.w[at + "out.weight"].T

    def retnet(self, x: Tensor, layer: int, at: str) -> Tensor:
        """The paper's parallel form, in complex numbers: Q_n e^{in theta} (K_m e^{im theta})^*, real part."""
        heads, p = [], self.p
        theta = torch.tensor([10_000.0 ** (-2 * c / p) for c in range(p // 2)], dtype=torch.float64)
        turn = torch.exp(1j * torch.arange(len(x))[:, None] * theta)
        values, gates = (
            (x @ self.w[f"{at}project.{name}.weight"].T).chunk(self.config.n_heads, 1) for name in ("value", "gate")
        )
        for h, (q, k) in enumerate(zip(*(self.project(x, at, name) for name in ("query", "key")), strict=True)):
            q, k = (torch.complex(y[:, : p // 2], y[:, p // 2 :]) * turn for y in (q, k))
            ages = (torch.arange(len(x))[:, None] - torch.arange(len(x))).double()
            decays = torch.where(ages >= 0, (1 - 2.0 ** (-5 - h)) ** ages, 0.0)
            out = ((q @ k.conj().T).real * decays) @ values[h]
            heads.append(norm(out, self.w[at + "norm.weight"]) * silu(gates[h]))
        return torch.cat(heads, 1) @ self.w[at + "out.weight"].T

    def conv(self, x: Tensor, at: str) -> Tensor:
        """[T, C]"""
        w, rows = self.w[at + "conv.weight"], []
        for t in range(len(x)):
            past = [x[t - i] * w[:, w.shape[1] - 1 - i] for i in range(w.shape[1]) if t >= i]
            rows.append(silu(sum(past) + self.w.get(at + "conv.bias", 0.0)))
        return torch.stack(rows)

    def mamba2(self, x: Tensor, layer: int, at: str) -> Tensor:
        d, heads, n = 2 * self.config.d_model, self.config.n_heads, self.config.options.ssm_state
        z, u, step = (x @ self.w[at + "project.input.weight"].T).split([d, d + 2 * n, heads], 1)
        v, key, query = self.conv(u, at).split([d, n, n], 1)
        dt = torch.log(1 + torch.exp(step + self.w[at + "dt_bias"]))
        rate, skip, p = -torch.exp(self.w[at + "A_log"]), self.w[at + "D"], d // heads
        columns = []
        for h in range(heads):
            state, rows, values = torch.zeros(n, p, dtype=torch.float64), [], v[:, h * p : (h + 1) * p]
            for t in range(len(x)):
                state = torch.exp(rate[h] * dt[t, h]) * state + torch.outer(key[t], dt[t, h] * values[t])
                rows.append(query[t] @ state + skip[h] * values[t])
            columns.append(torch.stack(rows))
        return norm(torch.cat(columns, 1) * silu(z), self.w[at + "norm.weight"]) @ self.w[at + "out.weight"].T

    def delta_rule(self, u: Tensor, beta: Tensor, log_decay: list[Tensor], at: str, gate: Tensor | float) -> Tensor:
        """The papers' layout: S [p_v, p]. u: q, k, v before their convolution; log_decay of each head [T, 1 or p]."""
        heads, p = self.config.n_heads, self.config.options.key_dim
        q, k, v = (
            x.chunk(heads, 1) for x in self.conv(u, at).split([heads * p, heads * p, u.shape[1] - 2 * heads * p], 1)
        )
        share = sigmoid(beta) * (2 if self.config.options.negative_eigenvalues else 1)
        columns = []
        for h in range(heads):
            keys, queries = (x / torch.sqrt((x**2).sum(-1, keepdim=True) + 1e-6) for x in (k[h], q[h]))
            state, rows = torch.zeros(v[h].shape[1], p, dtype=torch.float64), []
            for t in range(len(u)):
                forget = torch.eye(p, dtype=torch.float64) - share[t, h] * torch.outer(keys[t], keys[t])
                state = (state * torch.exp(log_decay[h][t])) @ forget + share[t, h] * torch.outer(v[h][t], keys[t])
                rows.append(state @ queries[t] / math.sqrt(p))
            columns.append(norm(torch.stack(rows), self.w[at + "norm.weight"]))
        return (torch.cat(columns, 1) * gate) @ self.w[at + "out.weight"].T

    def deltanet(self, x: Tensor, layer: int, at: str) -> Tensor:
        wide = (2 + self.config.options.expand_v) * self.config.n_heads * self.config.options.key_dim
        u, beta = (x @ self.w[at + "project.input.weight"].T).split([wide, self.config.n_heads], 1)
        return self.delta_rule(u, beta, [torch.zeros(len(x), 1).double()] * self.config.n_heads, at, 1.0)

    def gated_deltanet(self, x: Tensor, layer: int, at: str) -> Tensor:
        heads, keys = self.config.n_heads, self.config.n_heads * self.config.options.key_dim
        wide = self.config.options.expand_v * keys
        widths = [2 * keys + wide, heads, heads, wide]
        u, beta, step, gate = (x @ self.w[at + "project.input.weight"].T).split(widths, 1)
        dt = torch.log(1 + torch.exp(step + self.w[at + "dt_bias"]))
        log_decay = list((-torch.exp(self.w[at + "A_log"]) * dt).split(1, 1))
        return self.delta_rule(u, beta, log_decay, at, silu(gate))

    def kimi_delta(self, x: Tensor, layer: int, at: str) -> Tensor:
        heads, p = self.config.n_heads, self.config.options.key_dim
        widths = [(2 + self.config.options.expand_v) * heads * p, heads, *[self.config.options.gate_rank] * 2]
        u, beta, decay, gate = (x @ self.w[at + "project.input.weight"].T).split(widths, 1)
        dt = torch.log(1 + torch.exp(decay @ self.w[at + "decay.weight"].T + self.w[at + "dt_bias"]))
        log_decay = [-torch.exp(a) * part for a, part in zip(self.w[at + "A_log"], dt.split(p, 1), strict=True)]
        return self.delta_rule(u, beta, log_decay, at, sigmoid(gate @ self.w[at + "gate.weight"].T))

    def mamba1(self, x: Tensor, layer: int, at: str) -> Tensor:
        n, rank = self.config.options.ssm_state, self.config.options.dt_rank
        u, z = (x @ self.w[at + "project.input.weight"].T).chunk(2, 1)
        v = self.conv(u, at)
        low, key, query = (v @ self.w[at + "select.weight"].T).split([rank, n, n], 1)
        dt = torch.log(1 + torch.exp(low @ self.w[at + "step.weight"].T + self.w[at + "dt_bias"]))
        rate = -torch.exp(self.w[at + "A_log"])
        state, rows = torch.zeros_like(rate), []
        for t in range(len(x)):
            state = torch.exp(dt[t][:, None] * rate) * state + torch.outer(dt[t] * v[t], key[t])
            rows.append((state * query[t]).sum(1) + self.w[at + "D"] * v[t])
        return (torch.stack(rows) * silu(z)) @ self.w[at + "out.weight"].T

    def lru(self, x: Tensor, layer: int, at: str) -> Tensor:
        nu, theta, gamma, skip = (self.w[at + name] for name in ("nu", "theta", "log_gamma", "skip"))
        decay = torch.exp(-torch.exp(nu) + 1j * torch.exp(theta))
        entering = x @ self.w[at + "project.input.weight"].T
        out, state, rows = self.w[at + "out.weight"], torch.zeros_like(decay), []
        read = torch.complex(out[:, 0::2], -out[:, 1::2])  # C, of which the real part of C h is kept
        for t in range(len(x)):
            state = decay * state + torch.exp(gamma) * torch.complex(entering[t, 0::2], entering[t, 1::2])
            rows.append((read @ state).real + skip * x[t])
        return torch.stack(rows)

    def cosformer2(self, x: Tensor, layer: int, at: str) -> Tensor:
        heads = []
        parts = zip(*(self.project(x, at, name) for name in ("query", "key", "value")), strict=True)
        for theta, (q, k, v) in zip(self.w[at + "theta"], parts, strict=True):
            rows = []
            for t in range(len(x)):
                weights = [(silu(q[t]) * silu(k[s]) * torch.cos((t - s) * theta)).sum() for s in range(t + 1)]
                rows.append(torch.stack(weights) @ v[: t + 1])
            heads.append(torch.stack(rows))
        return (norm(torch.cat(heads, 1)) * self.low_rank_gate(x, at)) @ self.w[at + "out.weight"].T

    def tpe(self, x: Tensor) -> Tensor:
        mix = self.w["decoder.tpe.mix"]
        e = mix.shape[1]
        poles = [math.exp(-1 / self.config.context_length ** (j / (e - 1))) for j in range(e)]
        rows = []
        for t in range(len(x)):
            kernel = torch.stack([mix @ torch.tensor([p**k for p in poles], dtype=torch.float64) for k in range(t + 1)])
            rows.append((kernel * x[: t + 1].flip(0)).sum(0))
        return torch.stack(rows)


@pytest.mark.parametrize(
    "arch, changes",
    [
        *((arch, {}) for arch in ARCHS if not arch.startswith("hgrn")),  # theirs: test_ablations.py
        ("tnl", {"decay_slopes": "fixed"}),
        ("tnl", {"decay": "dependent"}),
        ("tnl", {"decay": "none"}),
        ("transformer", {"n_heads": 6, "window": 5, "attention_gate": True}),  # blocks of five queries
        ("gated_deltanet", {"expand_v": 1, "conv_width": 2, "negative_eigenvalues": True}),
        ("gla", {"gate_rank": 5, "gate_temperature": 3, "n_heads": 2}),
        ("retnet", {"expand_v": 1, "n_heads": 2}),
        ("deltanet", {"expand_v": 2, "n_heads": 2, "key_dim": 7, "negative_eigenvalues": True}),
        ("kimi_delta", {"expand_v": 2, "gate_rank": 3, "n_heads": 2, "key_dim": 5}),
        ("transformer", {"n_kv_heads": 3, "window": 30, "position": "none", "qk_norm": False}),
    ],
)
def test_logits_equal_the_equations(arch, changes):
    config = ModelConfig.from_dict({"arch": arch, **CONFIG, **changes, "chunk_size": 8, "init_std": 0.3})
    model = build_model(config, seed=5)
    with torch.no_grad():  # away from values that hide a mistake: equal bounds, weights of one
        for index, parameter in enumerate(p for p in model.parameters() if p.dim() == 1 or p is model.decoder.gamma):
            parameter += 0.5 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index))
    model = model.double()
    ids = torch.randint(0, 61, (37,), generator=torch.Generator().manual_seed(0))
    reference = Reference(config, {name: p.detach() for name, p in model.named_parameters()}).logits(ids.tolist())
    logits = model(input_ids=ids[None]).logits[0].detach()
    # TNL's and RetNet's decays and Tpe's poles are constants of the model in fp32
    tolerance = {"tnl": 1e-6, "retnet": 1e-6, "cosformer2": 1e-6}.get(arch, 1e-10)
    assert ((logits - reference).norm() / reference.norm()).item() < tolerance
