"""Tensors that are columns of one: what is taken for such, and where their gradients lie."""

import pytest
import torch

from arch.ops.fused.linear import joined
from arch.ops.joint_rows import as_rows, gradients_in, gradients_of, joint_width, place_of, row_stride

B, T = 2, 5


def columns(*widths, dtype=torch.float32):
    """Columns of these widths of one tensor, which counts."""
    whole = torch.arange(B * T * sum(widths)).to(dtype).view(B, T, -1)
    return whole.split(list(widths), -1)


def test_columns_of_one_tensor_are_told():
    a, b = columns(16, 32)
    assert joint_width(a) == joint_width(b) == 48
    assert joint_width(b.unflatten(-1, (2, 16))) == 48 and joint_width(b.unflatten(-1, (32, 1))) == 48
    assert row_stride(a) == row_stride(b.unflatten(-1, (2, 16))) == 48


@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(B, T, 16),
        torch.zeros(B, T, 48).unflatten(-1, (3, 16)),
        torch.zeros(B, 1, 48)[..., :16],  # one row: how far the next would lie is not known
        torch.zeros(B, T + 1, 48)[:, 1:, :16],  # not all rows
        torch.zeros(B + 1, T, 48)[1:, :, :16],
        torch.zeros(T, B, 48).transpose(0, 1)[..., :16],
        torch.zeros(B, T, 96)[..., ::2],  # of rows with gaps
        torch.zeros(B, T, 3, 32)[..., :16],
        torch.zeros(B, T, 50)[..., :16],  # rows that do not begin at whole 16 bytes
        torch.zeros(B, T, 48)[..., 2:18],
        torch.zeros(1).expand(B, T, 16),
    ],
)
def test_other_tensors_are_made_contiguous(x):
    assert joint_width(x) == 0
    (found,) = as_rows(x)
    assert found.is_contiguous() and torch.equal(found, x) and row_stride(found) == found[0, 0].numel()
    (gradient,) = gradients_of(found)
    assert gradient.shape == x.shape and gradient.is_contiguous()


def test_gradients_lie_where_their_tensors_do():
    """Two columns of one tensor and one of another, and a tensor by itself, whose dtype is another."""
    (a, b, _), (c, _) = columns(16, 32, 16), columns(32, 16)
    alone = torch.zeros(B, T, 3, dtype=torch.float64)
    given = as_rows(a, b, None, c, alone)
    assert all(x is y for x, y in zip(given, (a, b, None, c, alone), strict=True))
    for found in (gradients_of(*given), gradients_in([place_of(x) for x in given], a)):
        d_a, d_b, nothing, d_c, d_alone = found
        assert nothing is None and d_alone.dtype == torch.float64
        for x, gradient in ((a, d_a), (b, d_b), (c, d_c)):
            assert gradient.shape == x.shape and gradient.stride() == x.stride()
        assert d_a.untyped_storage().data_ptr() == d_b.untyped_storage().data_ptr() != d_c.untyped_storage().data_ptr()
        assert d_b.data_ptr() - d_a.data_ptr() == b.data_ptr() - a.data_ptr()


@pytest.mark.parametrize("there", [(0, 1, 2), (0, 2), (1,), ()])
def test_gradients_become_one_matrix(there):
    """Those that lie in it stay there, others are copied to their columns."""
    widths = (16, 32, 16)
    values = columns(*widths)
    places = list(gradients_of(*as_rows(*columns(*widths))))
    gradients = [places[i].copy_(values[i]) if i in there else values[i].contiguous() for i in range(3)]
    matrix = joined(gradients)
    assert torch.equal(matrix, torch.cat(values, -1).flatten(0, 1)) and matrix.is_contiguous()
    if there:
        assert matrix.untyped_storage().data_ptr() == places[0].untyped_storage().data_ptr()


def test_gradients_in_several_matrices_are_copied_to_one():
    """The second lies at the same columns as the first, of a matrix of its own; the third at another's columns."""
    values = columns(16, 16, 16)
    first, second, third = (gradients_of(*as_rows(*columns(16, 16, 16))) for _ in range(3))
    matrix = joined([first[0].copy_(values[0]), second[1].copy_(values[1]), third[0].copy_(values[2])])
    assert torch.equal(matrix, torch.cat(values, -1).flatten(0, 1))


def test_one_gradient_is_a_matrix_as_it_is():
    (x,) = columns(16)
    assert joined([x]).data_ptr() == x.data_ptr() and joined([x]).shape == (B * T, 16)
