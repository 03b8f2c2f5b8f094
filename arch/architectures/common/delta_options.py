"""The options and shapes that DeltaNet, Gated DeltaNet and Kimi Delta Attention share. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from ...options import Options, option


@dataclass(frozen=True)
class DeltaOptions(Options):
    """The options of mixers with the delta rule."""

    key_dim: int | None = option(None)
    """Channels of a head's keys; null: the head dimension, of which Gated DeltaNet has 3/4."""
    expand_v: int | None = option(None)
    """Channels of a head's values for each channel of its keys; null: 2 (Gated DeltaNet, RetNet), 1 (DeltaNet, Kimi
    Delta)."""
    conv_width: int = option(4)
    """Steps of the short convolution."""
    negative_eigenvalues: bool = option(False)
    """The delta rule's beta is in 0 to 2 and not in 0 to 1: a state's transition may have eigenvalues of -1."""
