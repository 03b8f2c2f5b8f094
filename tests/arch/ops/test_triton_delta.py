"""The kernels of `gated_delta` against the recurrence in float64: in fp32 on a GPU where there is one, else in Triton's
interpreter; and in bf16 on a GPU."""

import pytest
import torch
import torch.nn.functional as nnf

from arch.ops import gated_delta

from .compare import picked, randn
from .kernels import DEVICE, GPU, case_equals_the_recurrence, equals_the_recurrence, moved, starts
from .test_triton_bf16 import INTERPRETED, ON_A_GPU, STRONG, as_exact_as_the_chunk_backend

INF = float("inf")
LOG_DECAYS = [0.0, -1e-6, -0.7, -14.0, -100.0, -INF]
# chunks of 16 rows, several of them, and several tiles of either width
SMALL = {
    **{"chunk": 16, "operands_tile": (16, 16), "run_tile": 16, "gradient_tile": (16, 16)},
    **{"scores_tile": 16, "channel_tile": (16, 16)},
}
TMA = [False, pytest.param(True, marks=pytest.mark.skipif(GPU, reason="small fp32 tiles are too narrow for it"))]


@pytest.mark.parametrize("length", [1, 33, 50])
@pytest.mark.parametrize("name", ["delta none", "delta head", "delta channel"])
def test_kernels_equal_the_recurrence(name, length):
    case_equals_the_recurrence(name, length, all_heads=True)


@pytest.mark.parametrize("name", ["delta head", "delta channel"])
@pytest.mark.parametrize("sizes", [{}, SMALL, {"chunk": 64}], ids=["rules", "small", "64"])
def test_any_decay(name, sizes):
    case_equals_the_recurrence(name, 70, log_decays=LOG_DECAYS, all_heads=True, **sizes)


@pytest.mark.parametrize("name", ["delta none", "delta head", "delta channel"])
def test_packed_documents(name):
    case_equals_the_recurrence(name, 40, starts(40, [1, 32, 33], [0, 5, 31, 39]), all_heads=True)


class Delta:
    """A call of `gated_delta`. widths: of keys and values; decays: log-decays [B, T, H] or [B, T, H, d_k]; state:
    whether there is an initial one; same: how much of a key all keys share, by which the inverse grows."""

    def __init__(self, length, widths, decays, document_starts=None, state=True, same=0.0, batch=1, heads=2):
        self.document_starts, self.state = document_starts, state

        def made(*shape, seed):
            return randn(batch, *shape, dtype=torch.float32, seed=seed)

        k = nnf.normalize((1 - same) * made(length, heads, widths[0], seed=1) + same, dim=-1)
        beta = picked(batch, length, heads, values=[0.0, 0.3, 1.0, 1.5, 2.0], dtype=torch.float32, seed=4)
        if same > 0.5:  # twice the projection, again and again, is no contraction to bf16's digits
            beta.clamp_(max=1.0)
        self.leaves = [widths[0] ** -0.5 * made(length, heads, widths[0], seed=0), k]
        self.leaves += [made(length, heads, widths[1], seed=2), beta]
        self.leaves += [] if decays is None else [decays]
        self.leaves += [made(heads, *widths, seed=3)] if state else []
        self.names = ["q", "k", "v", "beta", *([] if decays is None else ["decays"]), *(["state"] if state else [])]

    def run(self, backend, leaves):
        q, k, v, beta, *rest = leaves
        decays = rest.pop(0) if "decays" in self.names else None
        state = rest.pop(0) if self.state else None
        starts = moved(self.document_starts, q.device)
        return gated_delta(q, k, v, beta, decays, state, backend=backend, document_starts=starts)


@pytest.mark.parametrize("tma", TMA)
@pytest.mark.parametrize("widths", [(16, 32), (32, 16)], ids=str)
@pytest.mark.parametrize("decays", ["none", "head", "channel"])
def test_tiles(widths, decays, tma):
    shape = {"head": (1, 37, 2), "channel": (1, 37, 2, widths[0])}.get(decays)
    log_decay = None if shape is None else -randn(*shape, dtype=torch.float32, seed=5).abs()
    call = Delta(37, widths, log_decay, state=decays != "none")
    equals_the_recurrence(call.run, call.leaves, **SMALL, tma=tma)


@pytest.mark.parametrize("same", [0.5, 1.0])
def test_keys_alike(same):
    """The inverse of a chunk's matrix then has as large numbers as it, of both signs."""
    call = Delta(70, (16, 16), None, same=same)
    equals_the_recurrence(call.run, call.leaves, chunk=64)


BF16 = [  # widths, tokens, decays, packed
    *(
        (widths, length, kind, packed)
        for widths, length in (
            *(((width, width), 777) for width in (16, 32, 64, 128, 256)),
            ((128, 256), 500),
            ((256, 64), 129),
            ((64, 128), 65),
            ((128, 128), 1),
        )
        for kind in ("none", "per step", "strong", "channel", "channels apart")
        for packed in (False, True)
    ),
    ((128, 128), 20_001, "per step", False),
    ((128, 128), 20_001, "channel", False),
]


@ON_A_GPU
@pytest.mark.parametrize("case", BF16, ids=lambda case: "-".join(map(str, case)))
def test_bf16(case):
    widths, length, kind, packed = case
    batch = 2 if length > 1 else 64  # an error of eight numbers would be chance
    shape = (batch, length, 4, *([widths[0]] if kind.startswith("channel") else []))
    steps = randn(*shape, dtype=torch.float32, seed=7)
    decays = {
        "strong": picked(*shape, values=STRONG, dtype=torch.float32, seed=7),
        "per step": -nnf.softplus(steps - 3),
        "channel": -nnf.softplus(steps - 3),
        # from little to all is lost in a row, by channel
        "channels apart": -nnf.softplus(steps) * torch.logspace(-3, 2, shape[-1]),
    }.get(kind)
    starts = randn(batch, length, dtype=torch.float32, seed=5) > 2.5 if packed else None
    call = Delta(length, widths, decays, starts, batch=batch, heads=4)
    leaves = [x.to(DEVICE, torch.bfloat16 if i < 3 else x.dtype) for i, x in enumerate(call.leaves)]
    as_exact_as_the_chunk_backend(call.run, leaves, call.names, {}, amplified=True)


@INTERPRETED
@pytest.mark.parametrize("length, channels", [(1, ()), (40, ()), pytest.param(1, (16,), marks=pytest.mark.slow)])
@pytest.mark.usefixtures("rounding")
def test_roundings(length, channels):
    """One row, between two states that are given in fp32, and more than a chunk. (Without decays the inverse, whose
    products a GPU does in tf32, would show that they are rounded to bf16 here; so would by channel the sums of decays
    over several rows.)"""
    batch = 16 if length == 1 else 1  # an error of few numbers would be chance
    decays = picked(batch, length, 2, *channels, values=STRONG, dtype=torch.float32, seed=5)
    call = Delta(length, (16, 16), decays, batch=batch)
    leaves = [x.bfloat16().to(x.dtype) if i < 3 else x for i, x in enumerate(call.leaves)]
    as_exact_as_the_chunk_backend(call.run, leaves, call.names, {}, amplified=True)
