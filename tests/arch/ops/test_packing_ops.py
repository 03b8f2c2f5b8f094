"""Packed documents: every operation with `document_starts` equals each document alone, exactly, in every backend."""

import pytest
import torch

from arch.errors import InputError

from .compare import CASES, TOLERANCE, assert_close, case, randn, with_gradients

# documents of a row: one token, across chunks of 16 rows, on their boundaries, several within one
ROWS = [[16, 1, 1, 5, 9, 37, 3, 32, 23], [40, 24, 1, 15, 2, 2, 16, 26, 1]]
LENGTH = sum(ROWS[0])


def starts(rows, first=True):
    """bool [B, T], True at each document's first token; `first`: at the row's first token too."""
    document_starts = torch.zeros(len(rows), sum(rows[0]), dtype=torch.bool)
    for row, lengths in enumerate(rows):
        document_starts[row, torch.tensor([0, *lengths[:-1]]).cumsum(0)] = True
        document_starts[row, 0] = first
    return document_starts


def alone(example, leaves, rows):
    """Outputs [B, T, ..] and last states of documents that are each a sequence of their own."""
    count = len(example.sequences)
    outputs, states = [], []
    for row, lengths in enumerate(rows):
        parts = zip(*(x[row : row + 1].split(lengths, 1) for x in leaves[:count]), strict=True)
        results = [example.run([*part, *leaves[count:]], "chunk", initial=False) for part in parts]
        outputs.append(torch.cat([out for out, _ in results], 1))
        states.append(results[-1][1])
    return torch.cat(outputs), torch.cat(states) + 0 * leaves[-1]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", CASES)
def test_packed_documents_equal_each_alone(name, dtype):
    """The initial state is discarded, and has no gradient, where a document starts at the first token."""
    example = case(name, 2, LENGTH, dtype)
    inputs = example.inputs()
    expected = with_gradients(lambda leaves: alone(example, leaves, ROWS), inputs)
    for backend in ("naive", "chunk", "tokens") if dtype == torch.float64 else ("chunk",):
        actual = with_gradients(lambda leaves, kind=backend: example.run(leaves, kind, starts(ROWS)), inputs)
        assert (actual[-1] == 0).all()
        assert_close(actual, expected, TOLERANCE[dtype])


@pytest.mark.parametrize("name", CASES)
def test_backends_agree_at_every_chunk_size(name):
    """Here the first document goes on from an initial state."""
    example, document_starts = case(name, 2, LENGTH, torch.float64), starts(ROWS, first=False)
    expected = with_gradients(lambda leaves: example.run(leaves, "naive", document_starts), example.inputs())
    for size in (1, 4, 64, 256):
        actual = with_gradients(
            lambda leaves, size=size: example.run(leaves, "chunk", document_starts, size), example.inputs()
        )
        assert (actual[-1] != 0).any()
        assert_close(actual, expected, 1e-10)


@pytest.mark.parametrize("backend", ["naive", "chunk"])
@pytest.mark.parametrize("name", CASES)
def test_a_document_at_every_token_and_at_none(name, backend):
    example = case(name, 2, 37, torch.float64)
    every = torch.ones(2, 37, dtype=torch.bool)
    expected = with_gradients(lambda leaves: alone(example, leaves, [[1] * 37] * 2), example.inputs())
    assert_close(with_gradients(lambda leaves: example.run(leaves, backend, every), example.inputs()), expected, 1e-10)
    expected = with_gradients(lambda leaves: example.run(leaves, backend), example.inputs())
    assert_close(with_gradients(lambda leaves: example.run(leaves, backend, ~every), example.inputs()), expected, 1e-10)


@pytest.mark.parametrize("backend", ["naive", "chunk"])
@pytest.mark.parametrize("name", CASES)
def test_not_a_bit_leaks_between_documents(name, backend):
    """Neither a document's outputs nor its gradients change when its neighbours do, in float32, bit for bit."""
    first, other = case(name, 2, LENGTH, torch.float32), case(name, 2, LENGTH, torch.float32)
    document_starts, (start, end) = starts(ROWS[:1] * 2), (32, 69)  # the document of 37 tokens
    for x, y in zip(first.sequences, other.sequences, strict=True):
        x[:, :start] = 3 * y[:, :start].flip(1)
        x[:, end:] = 0.5 * y[:, end:].flip(1)
    results = []
    for example in (first, other):
        leaves = [x.clone().requires_grad_() for x in example.inputs()]
        out, _ = example.run(leaves, backend, document_starts)
        weight = randn(*out[:, start:end].shape, dtype=torch.float32, seed=9)
        grads = torch.autograd.grad((out[:, start:end] * weight).sum(), leaves[: len(example.sequences)])
        assert all((g[:, :start] == 0).all() and (g[:, end:] == 0).all() for g in grads)
        results.append([out[:, start:end], *(g[:, start:end] for g in grads)])
    if name == "scan step":  # the rotating frame goes on through the row: rounding alone
        assert_close(results[0], results[1], 1e-6)
    else:
        assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))


@pytest.mark.parametrize("backend", ["naive", "chunk"])
def test_a_document_start_keeps_the_tied_key(backend):
    """k = 1 - f reads the gate before the document's start cuts it: its logit has a gradient, through the key alone."""
    document_starts = torch.zeros(1, 20, dtype=torch.bool)
    document_starts[:, 7] = True
    tied, free = (case(name, 1, 20, torch.float64) for name in ("gated logits", "gated log"))
    _, _, _, _, d_logits, *_ = with_gradients(lambda leaves: tied.run(leaves, backend, document_starts), tied.inputs())
    assert (d_logits[:, 7] != 0).all()
    _, _, _, d_k, _, d_log_f, _ = with_gradients(
        lambda leaves: free.run(leaves, backend, document_starts), free.inputs()
    )
    assert (d_log_f[:, 7] == 0).all() and (d_log_f[:, 8] != 0).all() and (d_k[:, 7] != 0).all()


@pytest.mark.parametrize("document_starts", [torch.zeros(2, 5), torch.zeros(2, 4, dtype=torch.bool)])
def test_document_starts_of_another_kind_is_named(document_starts):
    example = case("filter", 2, 5, torch.float32)
    with pytest.raises(InputError, match=r"causal_filter: document_starts is .*expected bool \[B = 2, T = 5\]"):
        example.run(example.inputs(), document_starts=document_starts)
