"""What tests of kernels share: where they run, the kernels against the recurrence in float64, and `decay_attention`
with all that it may be given."""

from dataclasses import dataclass

import torch
from torch import Tensor

from arch.kernel_config import override
from arch.ops import decay_attention

from .compare import assert_close, case, fewer_heads, randn, with_gradients

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
TOLERANCE = 1e-5


def moved(x, device):
    return None if x is None else x.to(device)


def starts(length, *rows):
    """bool [B, T], True at these tokens of each row."""
    document_starts = torch.zeros(len(rows), length, dtype=torch.bool)
    for row, tokens in enumerate(rows):
        document_starts[row, list(tokens)] = True
    return document_starts


def equals_the_recurrence(run, leaves, tolerance=TOLERANCE, **sizes):
    """Outputs, states and gradients of run("triton", leaves) in fp32 on DEVICE against run("naive", leaves) in float64
    on the CPU; sizes: of kernel_config. Returns those of the kernels."""
    expected = with_gradients(lambda x: run("naive", x), [x.double() for x in leaves])
    with override(**sizes):
        result = with_gradients(lambda x: run("triton", x), [x.to(DEVICE) for x in leaves])
    assert_close([x.cpu().double() for x in result], expected, tolerance)
    return result


def case_equals_the_recurrence(
    name, length, document_starts=None, log_decays=None, tolerance=TOLERANCE, all_heads=False, **sizes
):
    """A case of compare.py; document_starts: bool [B, T]."""
    example = case(name, 1 if document_starts is None else len(document_starts), length, torch.float32, log_decays)
    example = example if all_heads else fewer_heads(example)

    def run(backend, x):
        return example.run(x, backend, moved(document_starts, x[0].device))

    equals_the_recurrence(run, example.inputs(), tolerance, **sizes)


@dataclass
class Decay:
    """A call of `decay_attention`. Constant `rates` [H] have no gradient, `decays` and `gain` [B, T, H], `skip` [H] and
    the angles' theta do.
    length: of the sequences; heads and widths: of keys, and of values; positions: of the angles; scale: of q and k."""

    length: int
    heads: tuple[int, int] = (1, 2)
    widths: tuple[int, int] = (16, 16)
    batch: int = 1
    rates: Tensor | None = None
    decays: Tensor | None = None
    positions: Tensor | None = None
    document_starts: Tensor | None = None
    activation: str = ""
    gain: Tensor | None = None
    skip: Tensor | None = None
    state: bool = True
    scale: float = 1.0

    def leaves(self):
        """q, k, v, then what there is of decays, the initial state and theta."""
        (groups, heads), (key_dim, value_dim) = self.heads, self.widths

        def made(*shape, seed):
            return randn(self.batch, *shape, dtype=torch.float32, seed=seed)

        leaves = [self.scale * made(self.length, groups, key_dim, seed=seed) for seed in (0, 1)]
        leaves.append(made(self.length, heads, value_dim, seed=2))
        leaves += [] if self.decays is None else [self.decays]
        if self.state:
            leaves.append(made(heads, key_dim * (1 if self.positions is None else 2), value_dim, seed=3))
        if self.positions is not None:
            leaves.append(torch.rand(groups, key_dim, generator=torch.Generator().manual_seed(0)))
        return leaves + [x for x in (self.gain, self.skip) if x is not None]

    def run(self, backend, leaves):
        (q, k, v, *rest), device = leaves, leaves[0].device
        decays = rest.pop(0) if self.decays is not None else None
        if self.rates is not None:
            decays = self.rates.to(device, torch.float64 if v.dtype == torch.float64 else torch.float32)
        state = rest.pop(0) if self.state else None
        angles = None if self.positions is None else (rest.pop(0), self.positions.to(device))
        gain, skip = (None if x is None else rest.pop(0) for x in (self.gain, self.skip))
        return decay_attention(
            q, k, v, decays, state, backend=backend, document_starts=moved(self.document_starts, device), angles=angles,
            activation=self.activation, gain=gain, skip=skip,
        )  # fmt: skip
