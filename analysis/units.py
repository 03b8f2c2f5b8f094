"""The unit of the losses of stored fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from data.units import NATS_A_TOKEN


def unit_of(fits: Mapping[str, Any]) -> str:
    """Those that were published before they told it say nats a token."""
    return str(fits["conventions"].get("unit_L", NATS_A_TOKEN))
