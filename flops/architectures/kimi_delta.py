"""The costs of Kimi Delta Attention: the delta rule with decays per key channel and step. Imports no torch."""

from __future__ import annotations

from arch.architectures.kimi_delta import matrices

from ..delta_rule import delta_entry

ENTRY = delta_entry(matrices, by_channel=True)
