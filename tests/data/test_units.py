"""Losses of bytes are in nats a byte, wherever they are labelled."""

import pytest

from data.units import loss_unit


@pytest.mark.parametrize(
    ("tokenizers", "unit"),
    [
        (["bytes", "bytes"], "nats/byte"),
        (["bytes", None, float("nan")], "nats/byte"),  # runs that have not begun
        (["bpe:16384"], "nats/token"),
        (["bytes", "gpt2"], "nats/token"),
        ([None], "nats/token"),
        ([], "nats/token"),
    ],
)
def test_the_unit_follows_from_the_tokenizer(tokenizers, unit):
    assert loss_unit(tokenizers) == unit
