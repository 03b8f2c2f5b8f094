"""The costs of Gated DeltaNet: the delta rule with decays per head and step. Imports no torch."""

from __future__ import annotations

from arch.architectures.common.delta_shape import gated_deltanet

from ..delta_rule import delta_entry

ENTRY = delta_entry(gated_deltanet, by_channel=False)
