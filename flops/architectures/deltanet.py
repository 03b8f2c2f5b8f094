"""The costs of DeltaNet: the delta rule without decay. Imports no torch."""

from __future__ import annotations

from arch.architectures.common.delta_shape import deltanet

from ..delta_rule import delta_entry

ENTRY = delta_entry(deltanet, by_channel=False, gated=False)
