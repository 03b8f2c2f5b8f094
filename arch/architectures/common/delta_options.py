"""The options and shapes that Gated DeltaNet and Kimi Delta Attention share. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from ...options import Options, check_size, option
from ...sizes import ffn_beside


@dataclass(frozen=True)
class DeltaOptions(Options):
    """The options of mixers with the delta rule."""

    key_dim: int | None = option(None)
    """Channels of a head's keys; null: 3/4 of the head dimension (Gated DeltaNet), the head dimension (Kimi Delta)."""
    expand_v: int | None = option(None)
    """Channels of a head's values for each channel of its keys; null: 2 (Gated DeltaNet), 1 (Kimi Delta)."""
    conv_width: int = option(4)
    """Steps of the short convolution."""
    negative_eigenvalues: bool = option(False)
    """The delta rule's beta is in 0 to 2 and not in 0 to 1: a state's transition may have eigenvalues of -1."""


def delta_preset(
    options: type[DeltaOptions],
    matrices: Callable[[Any], dict[str, int]],
    shape: dict[str, Any],
    changes: dict[str, Any],
) -> dict[str, Any]:
    """The d_ffn beside the mixer, whose weights are `matrices`: the MLP pays for what they have beyond 4 d^2."""
    fields = shape | {name: changes[name] for name in ("d_model", "n_heads") if name in changes}
    for name in ("d_model", "n_heads"):
        check_size(name, fields[name])
    if "d_ffn" in changes or fields["d_model"] % fields["n_heads"]:
        return {}  # which ModelConfig refuses
    own = options(**{name: changes[name] for name in options.names() if name in changes})
    model: Any = SimpleNamespace(**fields, head_dim=fields["d_model"] // fields["n_heads"])
    derived: dict[str, Any] = {name: value for name, value in own.derived(model).items() if getattr(own, name) is None}
    model.options = replace(own, **derived)
    return {"d_ffn": ffn_beside(sum(matrices(model).values()), fields["d_model"], shape["d_ffn"])}
