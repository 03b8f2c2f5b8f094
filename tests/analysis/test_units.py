"""The unit of the losses of stored fits."""

from analysis.units import unit_of


def test_fits_tell_theirs():
    assert unit_of({"conventions": {"L": "loss", "unit_L": "nats/byte"}}) == "nats/byte"
    assert unit_of({"conventions": {"L": "loss (nats/token)"}}) == "nats/token", "published before they did"
