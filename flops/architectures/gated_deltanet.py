"""The costs of Gated DeltaNet: the delta rule with decays per head and step. Imports no torch."""

from __future__ import annotations

from arch.architectures.gated_deltanet import matrices

from ..delta_rule import delta_entry

ENTRY = delta_entry(matrices, by_channel=False)
