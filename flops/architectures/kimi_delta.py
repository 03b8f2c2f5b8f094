"""The costs of Kimi Delta Attention: the delta rule with decays per key channel and step. Imports no torch."""

from __future__ import annotations

from arch.architectures.common.delta_shape import kimi_delta

from ..delta_rule import delta_entry

ENTRY = delta_entry(kimi_delta, by_channel=True)
