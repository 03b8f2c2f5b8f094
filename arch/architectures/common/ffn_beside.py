"""The FFN width that gives a layer as many parameters as the other architectures' have. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from ...options import Options, check_size
from ...registry import Rule
from ...sizes import matrices


def ffn_beside(options: type[Options], mixer: Callable[[Any], dict[str, int]]) -> Rule:
    """The rule of d_ffn beside a mixer that has these options and weight matrices: the MLP pays for what they have
    beyond 4 d^2, so that a layer has 4 d^2 + 3 d g parameters, a LLaMA's with the shared g; to a multiple of 8, of 16
    from a width of 256 on and of 64 from 1,024 on. mixer(config) reads d_model, n_heads, head_dim and options alone."""

    def rule(size: str, shape: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
        fields = shape | {name: changes[name] for name in ("d_model", "n_heads") if name in changes}
        for name in ("d_model", "n_heads"):
            check_size(name, fields[name])
        d_model = fields["d_model"]
        if "d_ffn" in changes or d_model % fields["n_heads"]:
            return {}  # which ModelConfig refuses
        own = options(**{name: changes[name] for name in options.names() if name in changes})
        model: Any = SimpleNamespace(**fields, head_dim=d_model // fields["n_heads"])
        derived: dict[str, Any] = {k: v for k, v in own.derived(model).items() if getattr(own, k) is None}
        model.options = replace(own, **derived)
        step = 8 if d_model < 256 else 16 if d_model < 1024 else 64
        left = matrices(1, d_model, shape["d_ffn"]) - sum(mixer(model).values())
        return {"d_ffn": max(step, step * round(left / (3 * d_model) / step))}

    return rule
