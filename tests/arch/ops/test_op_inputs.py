"""Bad input to the sequence operations: one line that names operation, argument, and what fits."""

import pytest
import torch

from arch.errors import InputError
from arch.ops import causal_filter, decay_attention, gated_attention, scan, selective_scan

from .compare import CASES, case


def refuse(function):
    with pytest.raises(InputError) as raised:
        function()
    message = str(raised.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("backend", ["naive", "chunk", "tokens"])
@pytest.mark.parametrize("name", CASES)
def test_dtypes_that_are_no_floats_are_named(name, backend, dtype):
    example = case(name, 2, 5, torch.float32)
    for index in range(len(example.inputs())):
        leaves = example.inputs()
        leaves[index] = leaves[index].to(dtype)
        message = refuse(lambda leaves=leaves: example.run(leaves, backend))
        assert message.startswith(example.name.split("_")[0])
        assert f" is {str(dtype).removeprefix('torch.')}, which is not supported; " in message
        assert message.endswith("pass one of float64, float32, bfloat16, float16")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_supported_dtypes_run(name, dtype):
    example = case(name, 2, 5, dtype)
    out, state = example.run(example.inputs())
    assert out.dtype == dtype and state.dtype == (dtype if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize("name", CASES)
def test_another_batch_or_length_is_named(name):
    """Of every sequence and of the state; a size of 1 too, which would broadcast."""
    example = case(name, 2, 5, torch.float32)
    for index, whole in enumerate(example.sequences):
        for smaller in (whole[:1], whole[:, :1], whole[:, :4], whole[..., None]):
            if len(example.sequences) == 1 and smaller.dim() == whole.dim():
                continue  # nothing to compare with
            leaves = example.inputs()
            leaves[index] = smaller
            assert "expected [" in refuse(lambda leaves=leaves: example.run(leaves))
    for state in (example.state[:1], example.state[..., :1], example.state[0]):
        message = refuse(lambda state=state: example.run([*example.inputs()[:-1], state]))
        assert f"initial_state has shape {list(state.shape)}, expected [B = 2, " in message


def test_an_unknown_activation_is_named():
    x = torch.zeros(1, 2, 1, 4)
    message = refuse(lambda: decay_attention(x, x, x, activation="relu"))
    assert message == "decay_attention: unknown activation 'relu' of q and k (valid: '', 'silu')"


def test_heads_and_widths_that_do_not_fit_are_named():
    x = torch.zeros(2, 5, 4, 6)
    three, two = torch.zeros(2, 5, 3, 6), torch.zeros(2, 5, 2, 6)
    assert refuse(lambda: decay_attention(three, three, x)).endswith("have 3 heads, which do not divide v's 4")
    assert refuse(lambda: gated_attention(three, three, x, three)).endswith("have 3 heads, which do not divide v's 4")
    assert "k has shape [2, 5, 4, 6], expected [B = 2, T = 5, G = 2, K = 6]" in refuse(
        lambda: decay_attention(two, x, x)
    )
    assert "log_f has shape [2, 5, 4, 6]" in refuse(lambda: gated_attention(two, two, x, x))
    assert "log_decay has shape [2], expected [H = 4]" in refuse(lambda: decay_attention(x, x, x, torch.zeros(2)))
    for bound in (torch.zeros(5, 6), torch.zeros(4, 1, 6)):
        assert "bound has shape" in refuse(lambda bound=bound: gated_attention(x, None, x, (x, bound)))
    for bound in (torch.zeros(()), torch.zeros(4, 6), torch.zeros(2, 1, 4, 6)):
        assert gated_attention(x, None, x, (x, bound))[0].shape == x.shape
    assert refuse(lambda: gated_attention(x, x, x, x, activation="relu")).endswith("of q (valid: '', 'silu')")
    mix, rates = torch.zeros(6, 3), torch.zeros(3)
    assert "mix has shape [6, 3], expected [D = 4, E = 3]" in refuse(lambda: causal_filter(x[..., 0], mix, rates))
    assert "log_decay has shape [1]" in refuse(lambda: causal_filter(x[:, :, 0], mix, rates[:1]))
    b = x[:, :, 0]
    assert "theta has shape [1], expected [D = 6]" in refuse(lambda: scan(b, torch.zeros(2, 5, 6, 2), rates[:1]))
    assert "A has shape [3, 6]" in refuse(lambda: selective_scan(b, mix.T, b[..., :3], b[..., :3], b))
