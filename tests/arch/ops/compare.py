"""The sequence operations as cases, and two backends of one against each other: outputs, final states, all
gradients."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as nnf
from torch import Tensor

from arch import ops

LENGTHS = [1, 2, 16, 33, 50, 129]
# relative error of a tensor's norm; float32's covers sums over a few hundred terms
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-6}
DECAYS = [0.0, 1e-6, 0.5, 1 - 1e-6, 1.0]


def randn(*shape, dtype, seed):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def picked(*shape, values, dtype, seed):
    """A tensor whose numbers are drawn from `values`."""
    index = torch.randint(len(values), shape, generator=torch.Generator().manual_seed(seed))
    return torch.tensor(values, dtype=torch.float64)[index].to(dtype)


@dataclass
class Case:
    """One operation with inputs: sequences [B, T, ...], constants, and the initial state."""

    sequences: list[Tensor]
    constants: list[Tensor]
    state: Tensor
    call: Callable[..., tuple[Tensor, Tensor]]  # (operation, sequences, constants, the rest by keyword)
    name: str  # of the operation in arch.ops

    def run(self, leaves, backend="chunk", document_starts=None, chunk_size=16, initial=True):
        """`leaves` as `inputs` gives them; backend "tokens" goes token by token, as decoding does."""
        count = len(self.sequences)
        sequences, constants, state = leaves[:count], leaves[count:-1], leaves[-1] if initial else None
        run = partial(self.call, getattr(ops, self.name), chunk_size=chunk_size)
        if backend != "tokens":
            return run(sequences, constants, initial_state=state, backend=backend, document_starts=document_starts)
        outputs = []
        for t in range(sequences[0].shape[1]):
            now = None if document_starts is None else document_starts[:, t : t + 1]
            before = state
            out, state = run(
                [x[:, t : t + 1] for x in sequences],
                constants,
                initial_state=before,
                backend="naive",
                document_starts=now,
            )
            if before is not None:  # an operation leaves the state that it was given
                assert state.shape == before.shape and state.data_ptr() != before.data_ptr()
            outputs.append(out)
        return torch.cat(outputs, 1), state

    def inputs(self):
        return [*self.sequences, *self.constants, self.state]


CASES = (
    "decay none",
    "decay head",
    "decay step",
    "gated tied",
    "gated log",
    "gated logits",
    "delta none",
    "delta head",
    "delta channel",
    "filter",
    "scan real",
    "scan pairs",
    "scan constant",
    "scan step",
    "selective",
)


def case(name, batch, length, dtype, log_decays=None):
    """A case by name; decays per step are drawn from `log_decays`, by default from a normal's negative part."""

    def shaped(*shape, seed):
        return randn(*shape, dtype=dtype, seed=seed)

    def decays(*shape):
        if log_decays is None:
            return -shaped(*shape, seed=20).abs()
        return picked(*shape, values=log_decays, dtype=dtype, seed=20)

    kind, _, variant = name.partition(" ")
    x = shaped(batch, length, 6, seed=0)
    names = {"decay": "decay_attention", "gated": "gated_attention", "delta": "gated_delta", "filter": "causal_filter"}
    names |= {"scan": "scan"}
    operation = names.get(kind, "selective_scan")
    if kind in ("decay", "gated"):
        q, k = (shaped(batch, length, 2, 6, seed=seed) for seed in (0, 1))
        v, state = shaped(batch, length, 4, 3, seed=2), shaped(batch, 4, 6, 3, seed=3)
        calls = {
            "decay none": lambda op, x, c, **options: op(*x, None, **options),
            "decay head": lambda op, x, c, **options: op(*x, c[0], **options),
            "decay step": lambda op, x, c, **options: op(*x, **options),
            "gated tied": lambda op, x, c, **options: op(x[0], None, x[1], x[2], **options),
            "gated log": lambda op, x, c, **options: op(*x, **options),
            "gated logits": lambda op, x, c, **options: op(x[0], None, x[1], (x[2], c[0]), **options),
        }
        sequences = {
            "decay step": [q, k, v, decays(batch, length, 4)],
            "gated tied": [q, v, decays(batch, length, 2, 6)],
            "gated log": [q, k, v, decays(batch, length, 2, 6)],
            "gated logits": [q, v, 4 * k],
        }.get(name, [q, k, v])
        constants = {
            "decay head": [torch.tensor([-0.3, -4.0, -1e-6, -0.05], dtype=dtype)],
            "gated logits": [torch.linspace(0, 0.9, 12, dtype=dtype).reshape(2, 6)],
        }.get(name, [])
        return Case(sequences, constants, state, calls[name], operation)
    if kind == "delta":
        q, k = (shaped(batch, length, 2, 6, seed=seed) for seed in (0, 1))
        v, state = shaped(batch, length, 2, 3, seed=2), shaped(batch, 2, 6, 3, seed=3)
        beta = picked(batch, length, 2, values=[0.0, 0.3, 1.0, 1.5, 2.0], dtype=dtype, seed=4)
        log_decay = {"none": [], "head": [decays(batch, length, 2)], "channel": [decays(batch, length, 2, 6)]}[variant]

        def delta(op, x, c, **options):
            k = nnf.normalize(x[1], dim=-1) if x[1].is_floating_point() else x[1]
            return op(x[0], k, *x[2:], **options)

        return Case([q, k, v, beta, *log_decay], [], state, delta, operation)
    if kind == "filter":
        constants = [shaped(6, 5, seed=1), torch.tensor([-9.0, -3.0, -0.1, -1e-3, -1e-6], dtype=dtype)]
        state = shaped(batch, 6, 5, seed=2)
        return Case([x], constants, state, lambda op, x, c, **options: op(*x, *c, **options), operation)
    if kind == "scan":
        parts = [] if variant == "real" else [2]
        b, state = shaped(batch, length, 6, *parts, seed=1), shaped(batch, 6, *parts, seed=2)
        sequences = [decays(batch, length, 6), b, *([3 * x] if variant == "step" else [])]
        constants = [3 * shaped(6, seed=4)] if variant == "constant" else []
        return Case(sequences, constants, state, lambda op, x, c, **options: op(*x, *c, **options), operation)
    dt, (B, C) = shaped(batch, length, 6, seed=1).abs(), (shaped(batch, length, 5, seed=seed) for seed in (2, 3))
    A, state = -shaped(6, 5, seed=4).abs(), shaped(batch, 6, 5, seed=5)
    A[0] = 0.0  # a legal rate
    return Case([dt, B, C, x], [A], state, lambda op, x, c, **options: op(x[0], c[0], *x[1:], **options), operation)


def fewer_heads(example):
    """Half of the heads of an attention's case, which share one key head: for what takes its time by heads."""

    def half(x, axis):
        return x.narrow(axis, 0, x.shape[axis] // 2)

    sequences, constants = [half(x, 2) for x in example.sequences], [half(x, 0) for x in example.constants]
    return replace(example, sequences=sequences, constants=constants, state=half(example.state, 1))


def silu_of_queries(example, given):
    """A case of `gated_attention` with silu on its queries: taken by the operation, which is `given` them before it, or
    outside. The channels' queries are of all sizes."""

    def call(op, x, constants, **options):
        q, *rest = x
        if given:
            return example.call(op, [q, *rest], constants, activation="silu", **options)
        return example.call(op, [nnf.silu(q), *rest], constants, **options)

    q, *rest = example.sequences
    scale = torch.logspace(-1, 2.5, q.shape[-1], dtype=q.dtype)
    return replace(example, sequences=[q * scale, *rest], call=call)


def with_gradients(run, inputs):
    """Output, final state, and the gradients of a random weighting of both for all inputs."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    out, state = run(leaves)
    weights = (randn(*x.shape, dtype=torch.float64, seed=seed).to(x) for x, seed in ((out, 99), (state, 98)))
    total = sum((x * weight).sum() for x, weight in zip((out, state), weights, strict=True))
    return [out.detach(), state.detach(), *torch.autograd.grad(total, leaves)]


def assert_close(actual, expected, tolerance):
    """Shapes, dtypes, finite numbers, and the relative error of every tensor's norm."""
    for index, (reference, other) in enumerate(zip(expected, actual, strict=True)):
        assert reference.shape == other.shape and reference.dtype == other.dtype
        assert torch.isfinite(other).all(), f"tensor {index} is not finite"
        error = (other - reference).norm()
        relative = (error / reference.norm().clamp(min=1e-30)).item()
        assert relative < tolerance or error < 1e-12, f"tensor {index}: {relative:.2e}"


def compare(run, inputs, dtype, backends=("naive", "chunk"), tolerance=None):
    """Outputs, state and gradients of `run(backend, *inputs)`, the second backend against the first, the reference."""
    expected = with_gradients(lambda leaves: run(backends[0], *leaves), inputs)
    actual = with_gradients(lambda leaves: run(backends[1], *leaves), inputs)
    assert_close(actual, expected, tolerance or TOLERANCE[dtype])


def too_wide(x, widths, dtype):
    """`arch.ops.common.kernel_obstacle` without its look at the tensors' device: a CPU that stands in for a GPU."""
    return "a head is too wide" if any(width > 256 for width in widths) else None
