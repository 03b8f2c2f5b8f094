"""Losses of bytes are told in nats a byte, wherever they are labelled."""

import pytest

from analysis.units import loss_unit, unit_of


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


def test_fits_tell_theirs():
    assert unit_of({"conventions": {"L": "loss", "unit_L": "nats/byte"}}) == "nats/byte"
    assert unit_of({"conventions": {"L": "loss (nats/token)"}}) == "nats/token", "published before they did"
