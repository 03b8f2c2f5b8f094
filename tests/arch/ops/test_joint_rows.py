"""Tensors that are columns of a marked one: what is taken for such, where their gradients lie, and what is never
written over."""

import pytest
import torch
from torch import nn

from arch.ops.fused import linear
from arch.ops.fused.linear import fused_linear, joined
from arch.ops.joint_rows import as_rows, gradients_in, gradients_of, joint_width, mark_joint, place_of, row_stride

B, T = 2, 5


def columns(*widths, dtype=torch.float32, marked=True):
    """Columns of these widths of one tensor, which counts."""
    whole = torch.arange(B * T * sum(widths)).to(dtype).view(B, T, -1)
    return (mark_joint(whole) if marked else whole).split(list(widths), -1)


def memory(x):
    return x.untyped_storage().data_ptr()


def test_columns_of_one_tensor_are_recognised():
    a, b = columns(16, 32)
    assert joint_width(a) == joint_width(b) == 48
    assert joint_width(b.unflatten(-1, (2, 16))) == 48 and joint_width(b.unflatten(-1, (32, 1))) == 48
    assert row_stride(a) == row_stride(b.unflatten(-1, (2, 16))) == 48
    assert [joint_width(x) for x in columns(16, 32, marked=False)] == [0, 0]


def marked(*shape):
    return mark_joint(torch.zeros(*shape))


@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(B, T, 16),
        marked(B, 1, 48)[..., :16],  # one row: how far the next would lie is not known
        marked(B, T + 1, 48)[:, 1:, :16],  # not all rows
        marked(1, T + 1, 48)[:, 1:, :16],
        marked(B + 1, T, 48)[1:, :, :16],
        marked(T, B, 48).transpose(0, 1)[..., :16],
        marked(B, T, 96)[..., ::2],  # of rows with gaps
        marked(B, T, 2, 48).flatten(1, 2)[:, ::2, :16],  # every other row
        marked(B, T, 50)[..., :16],  # rows that do not begin at whole 16 bytes
        marked(B, T, 48)[..., 2:18],
        marked(B, T, 48).flatten()[40 : 40 + B * T * 48 - 48].unflatten(0, (1, -1, 48))[..., :16],  # over a row's end
    ],
)
def test_other_tensors_are_made_contiguous(x):
    assert joint_width(x) == 0
    (rows,) = as_rows(x)
    assert rows.is_contiguous() and torch.equal(rows, x) and row_stride(rows) == rows[0, 0].numel()
    (gradient,) = gradients_of(rows)
    assert gradient.shape == x.shape and gradient.is_contiguous()


def test_gradients_lie_where_their_tensors_do():
    """Two columns of one tensor and one of another, and a tensor by itself, whose dtype is another."""
    (a, b, _), (c, _) = columns(16, 32, 16), columns(32, 16)
    alone = torch.zeros(B, T, 3, dtype=torch.float64)
    given = as_rows(a, b, None, c, alone)
    assert all(x is y for x, y in zip(given, (a, b, None, c, alone), strict=True))
    for gradients in (gradients_of(*given), gradients_in([None if x is None else place_of(x) for x in given], a)):
        d_a, d_b, nothing, d_c, d_alone = gradients
        assert nothing is None and d_alone.dtype == torch.float64
        for x, gradient in ((a, d_a), (b, d_b), (c, d_c)):
            assert gradient.shape == x.shape and gradient.stride() == x.stride()
        assert memory(d_a) == memory(d_b) != memory(d_c)
        assert d_b.data_ptr() - d_a.data_ptr() == b.data_ptr() - a.data_ptr()


def test_what_shares_columns_is_copied():
    """A tensor that is given twice, or in part, has two gradients, which need two places."""
    a, b = columns(32, 32)
    whole = a.as_strided((B, T, 64), a.stride(), 0)
    for given in ((a, a), (a, b, a[..., 16:]), (whole, b)):
        rows = as_rows(*given)
        assert all(torch.equal(x, y) for x, y in zip(rows, given, strict=True))
        places = [x for x in gradients_of(*rows)]
        for number, place in enumerate(places):
            place.fill_(number)
        assert all((place == number).all() for number, place in enumerate(places))


@pytest.mark.parametrize("there", [(0, 1, 2), (0, 2), (1,), ()])
def test_gradients_become_one_matrix(there):
    """Those that lie in it stay there, others are copied to their columns."""
    widths = (16, 32, 16)
    values, inputs = columns(*widths, marked=False), columns(*widths)
    made = iter(gradients_of(*[inputs[i] for i in there]) if there else ())
    gradients = [next(made).copy_(values[i]) if i in there else values[i].contiguous() for i in range(3)]
    matrix = joined(gradients)
    assert torch.equal(matrix, torch.cat(values, -1).flatten(0, 1)) and matrix.is_contiguous()
    if there:
        assert memory(matrix) == memory(gradients[there[0]])


@pytest.mark.parametrize("given", ["nobody's", "another's", "replaced"])
def test_columns_that_others_have_are_not_written(given):
    """nobody's: columns of a tensor that is not of `gradients_in`; another's: whose missing columns a reader has;
    replaced: whose gradient was made anew, while the first may still be held."""
    values = columns(16, 16, marked=False)
    if given == "nobody's":
        lent = columns(16, 16)
    else:
        lent = gradients_of(*columns(16, 16))
        for place in lent:
            place.fill_(7.0)
    before = [x.clone() for x in lent]
    new = [x.contiguous() for x in values]
    gradients = [lent[0], new[1]]
    assert torch.equal(joined(gradients), torch.cat([before[0], values[1]], -1).flatten(0, 1))
    assert all(torch.equal(x, y) for x, y in zip(lent, before, strict=True))


def test_gradients_in_several_matrices_become_one():
    """The second lies at the same columns as the first, of a matrix of its own; the third at another's columns."""
    values = columns(16, 16, 16, marked=False)
    first, second, third = (gradients_of(columns(16, 16, 16)[i])[0] for i in (0, 1, 0))
    matrix = joined([first.copy_(values[0]), second.copy_(values[1]), third.copy_(values[2])])
    assert torch.equal(matrix, torch.cat(values, -1).flatten(0, 1)) and memory(matrix) == memory(first)


class Doubled(torch.autograd.Function):
    """2 x, whose gradient is left where x lies."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 2 * x

    @staticmethod
    def backward(ctx, d_out):
        (d_x,) = gradients_of(*ctx.saved_tensors)
        LEFT.append(d_x)
        return d_x.copy_(2 * d_out)


LEFT = []


def test_readers_of_columns_share_the_memory_of_their_gradients(monkeypatch):
    """Of several nodes, and of passes of which one does not come to the columns' own node; what no kernel reads is
    copied there; nothing is joined."""
    monkeypatch.setattr(linear, "uses_kernels", lambda x: True)
    monkeypatch.setattr(torch, "cat", lambda *args: pytest.fail("a pass over all gradients"))
    x = torch.randn(B, T, 64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    LEFT.clear()
    a, b, c = linear.columns(2 * x, (16, 32, 16))
    out = torch.stack([Doubled.apply(a).sum(), (Doubled.apply(b) ** 2).sum(), (3 * c).sum()]).sum()
    torch.autograd.grad(out, a, retain_graph=True)  # leaves a's gradient, and takes no other
    for _ in range(2):
        LEFT.clear()
        (gradient,) = torch.autograd.grad(out, x, retain_graph=True)
        assert len(LEFT) == 2 and memory(LEFT[0]) == memory(LEFT[1])
        expected = torch.full((B, T, 16), 4.0), 32 * x[..., 16:48], torch.full((B, T, 16), 6.0)
        for part, wanted in zip(gradient.split([16, 32, 16], -1), expected, strict=True):
            torch.testing.assert_close(part, wanted)


def test_gradients_of_two_nodes_share_no_memory(monkeypatch):
    """A column that is joined to another map's output by `cat`, whose backward hands out views of one tensor."""
    monkeypatch.setattr(linear, "uses_kernels", lambda x: True)
    monkeypatch.setattr(linear, "casts", lambda x, weights: True)
    torch.manual_seed(0)
    q, k, other = (nn.Linear(8, 16, bias=False) for _ in range(3))
    x = torch.randn(B, T, 8)
    results = []
    for group in (((q, k),), (q, k)):
        a, b = fused_linear(x, *group)
        total = torch.cat([a, other(x)], -1).square().sum() + b.sin().sum()
        results.append(torch.autograd.grad(total, [q.weight, k.weight, other.weight]))
    for first, second in zip(*results, strict=True):
        torch.testing.assert_close(first, second)
