"""Against flash-linear-attention's naive references, where it is installed (they run on a CPU, in fp32).

To run it: pip install --no-deps flash-linear-attention fla-core triton, and einops.
"""

import pytest
import torch

from arch.ops import decay_attention, gated_attention, scan
from benchmarks.kernel_peers import CASES_WITH_PEERS as CASES

from .compare import assert_close, randn

gla = pytest.importorskip("fla.ops.gla.naive", reason="flash-linear-attention is not installed")
simple_gla = pytest.importorskip("fla.ops.simple_gla.naive")
hgrn = pytest.importorskip("fla.ops.hgrn.naive")

LENGTHS = [1, 63, 200]
TOLERANCE = 1e-5


def attention_inputs(length):
    """q, k, v, log-decays per key channel, initial state: d_k = 16, d_v = 24."""
    q, k = (randn(2, length, 3, 16, dtype=torch.float32, seed=seed) for seed in (0, 1))
    v = randn(2, length, 3, 24, dtype=torch.float32, seed=2)
    gates = torch.nn.functional.logsigmoid(2 * randn(2, length, 3, 16, dtype=torch.float32, seed=3))
    return q, k, v, gates, randn(2, 3, 16, 24, dtype=torch.float32, seed=4)


def with_gradients(function, inputs):
    leaves = [x.clone().requires_grad_() for x in inputs]
    out, state = function(*leaves)
    weight = randn(*out.shape, dtype=torch.float32, seed=9)
    return [out.detach(), state.detach(), *torch.autograd.grad((out * weight).sum() + state.sum(), leaves)]


@pytest.mark.parametrize("length", LENGTHS)
def test_gated_attention_is_gla(length):
    def peer(q, k, v, gates, state):
        return gla.naive_recurrent_gla(q * q.shape[-1] ** 0.5, k, v, gates, state, output_final_state=True)

    def ours(q, k, v, gates, state):
        return gated_attention(q, k, v, gates, state)

    inputs = attention_inputs(length)
    assert_close(with_gradients(ours, inputs), with_gradients(peer, inputs), TOLERANCE)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("decay", ["step", "head"])
def test_decay_attention_is_simple_gla(decay, length):
    def peer(q, k, v, log_decay, state):
        gates = log_decay.expand(*v.shape[:3])
        return simple_gla.naive_recurrent_simple_gla(q, k, v, gates, scale=1.0, initial_state=state)

    def ours(q, k, v, log_decay, state):
        return decay_attention(q, k, v, log_decay, state)

    q, k, v, gates, state = attention_inputs(length)
    inputs = [q, k, v, gates[..., 0] if decay == "step" else torch.tensor([-0.5, -0.06, -1e-3]), state]
    assert_close(with_gradients(ours, inputs), with_gradients(peer, inputs), TOLERANCE)


@pytest.mark.parametrize("name", ["tnl", "mamba2"])
def test_the_benchmark_gives_it_what_ours_have(name, monkeypatch):
    """Its reference in the place of its kernels, which need a GPU."""
    import fla.ops.simple_gla

    def reference(q, k, v, g=None, g_gamma=None, scale=None):
        gates = g_gamma.expand(*v.shape[:3]) if g is None else g
        return simple_gla.naive_recurrent_simple_gla(q, k, v, gates, scale=scale)

    monkeypatch.setattr(fla.ops.simple_gla, "chunk_simple_gla", reference)
    case, shape = CASES[name], (1, 200, 4, 16)
    inputs, _ = case.inputs(*shape, dtype=torch.float32, device="cpu")
    assert_close([case.runs["fla"](*shape)(inputs)], [case.runs["naive"](*shape)(inputs)], TOLERANCE)


@pytest.mark.parametrize("length", LENGTHS)
def test_scan_is_hgrn(length):
    _, _, x, gates, _ = attention_inputs(length)
    inputs = [x.flatten(2)[..., :48], gates.flatten(2), randn(2, 48, dtype=torch.float32, seed=5)]

    def peer(x, gates, state):
        return hgrn.naive_recurrent_hgrn(x, gates, state, output_final_state=True)

    def ours(x, gates, state):
        return scan(gates, x, initial_state=state)

    assert_close(with_gradients(ours, inputs), with_gradients(peer, inputs), TOLERANCE)
