"""`decay_attention`'s kernels in bf16 against float64: as exact as the chunk backend whose products are rounded
alike."""

import importlib.util

import pytest
import torch

from arch.architectures.tnl.mixer import log_decays
from arch.bench.measure import gradients
from arch.ops import decay_attention

from .compare import assert_as_exact_as_the_chunk_backend, picked, randn
from .test_triton import DEVICE

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed (pip install triton==3.7.1)", allow_module_level=True)

from arch.kernel_config import override

HEADS = 4
STRONG = (0.0, -1e-6, -0.02, -0.7, -14.0, -float("inf"))


@pytest.fixture
def poisoned():
    """Memory that is not initialised holds NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def decays_of(kind, batch, length):
    if kind == "constant":
        return torch.tensor(log_decays(3, 12, HEADS), dtype=torch.float32)
    if kind == "strong":
        return picked(batch, length, HEADS, values=STRONG, dtype=torch.float32, seed=7)
    if kind == "per step":
        return -torch.nn.functional.softplus(randn(batch, length, HEADS, dtype=torch.float32, seed=7) - 3)
    return None


@pytest.mark.gpu("the interpreter's bf16 products are wrong")
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("kind", ["none", "constant", "per step", "strong"])
@pytest.mark.parametrize(
    "key_dim, value_dim, shared, length",
    [
        *((width, width, 1, 777) for width in (16, 32, 64, 128, 256)),
        (128, 64, 4, 1000),
        (64, 128, 2, 65),
        (128, 128, 1, 1),
        (64, 64, 1, 70_001),
    ],
)
@pytest.mark.usefixtures("poisoned")
def test_bf16_is_as_exact_as_the_chunk_backend_with_its_roundings(
    key_dim, value_dim, shared, length, kind, rotated, packed
):
    check(key_dim, value_dim, shared, length, kind, rotated, packed)


@pytest.mark.gpu("the interpreter's bf16 products are wrong")
@pytest.mark.parametrize("key_dim, value_dim, shared, length", [(128, 128, 1, 777), (64, 128, 2, 65), (128, 64, 4, 1)])
@pytest.mark.parametrize("kind, rotated", [("constant", False), ("none", True)])
@pytest.mark.usefixtures("poisoned")
def test_silu_in_the_kernels(key_dim, value_dim, shared, length, kind, rotated):
    check(key_dim, value_dim, shared, length, kind, rotated, False, activation="silu")


def check(key_dim, value_dim, shared, length, kind, rotated, packed, activation=""):
    if rotated and key_dim > 128:
        pytest.skip("keys of 256 channels with angles take the chunk backend")

    def make(*shape, seed):
        return randn(*shape, dtype=torch.float32, seed=seed).to(DEVICE)

    batch = 2 if length > 1 else 64  # an error of eight numbers would be chance
    q, k = (make(batch, length, HEADS // shared, key_dim, seed=seed) / key_dim**0.25 for seed in range(2))
    v, weight = (make(batch, length, HEADS, value_dim, seed=seed) for seed in (2, 3))
    state = make(batch, HEADS, key_dim * (2 if rotated else 1), value_dim, seed=4)
    decays = decays_of(kind, batch, length)
    leaves = [q.bfloat16(), k.bfloat16(), v.bfloat16(), state]
    names = ["out", "q", "k", "v", "state"]
    if rotated:
        leaves.append(10_000.0 ** -torch.linspace(0, 1, q.shape[2] * key_dim, device=DEVICE).view(-1, key_dim))
        names.append("theta")
    if decays is not None and decays.dim() == 3:
        leaves.append(decays.to(DEVICE))
        names.append("log_decay")
    constant = None if decays is None or decays.dim() == 3 else decays.to(DEVICE)
    document_starts = make(batch, length, seed=5) > 2.5 if packed else None
    positions = torch.arange(length, device=DEVICE)
    ones = torch.cat([weight.double().flatten(), make(state.numel(), seed=6).double()])

    def run(backend, inputs):
        def call(x):
            decay = x[-1] if names[-1] == "log_decay" else constant
            angles = (x[4], positions) if rotated else None
            if decay is not None:
                decay = decay.to(torch.float64 if x[0].dtype == torch.float64 else torch.float32)
            result = decay_attention(
                *x[:3],
                decay,
                x[3],
                backend=backend,
                document_starts=document_starts,
                angles=angles,
                activation=activation,
            )
            return torch.cat([y.double().flatten() for y in result])

        # three segments of chunks, the last one shorter
        with override(segments=3 if length > 192 else 0):
            return gradients(call, inputs, ones)

    assert_as_exact_as_the_chunk_backend(run, leaves, names)
