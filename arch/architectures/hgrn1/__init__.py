"""HGRN1: a gated linear RNN on single channels. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...options import check_size, option
from ...registry import register
from ...sizes import matrices
from ..common.hgrn_options import HGRNOptions
from .shape import mixer_size

if TYPE_CHECKING:
    from ...config import ModelConfig
    from ...model.mixer import Mixer


@dataclass(frozen=True)
class HGRN1Options(HGRNOptions):
    """The options of HGRN1."""

    ignored = ("n_heads",)

    hgrn1_state: str = option("complex", choices=("complex", "real", "real_2d", "narrow"))
    """The form of the state, with its widths and gates: complex numbers, pairs of real numbers, 2 d single real
    numbers, or d of them."""
    data_dependent_theta: bool = option(False, ablation=True)
    """theta depends on the token, by a projection of x, instead of one angle a channel."""
    expansion: str = option("none", choices=("none", "naive", "lr", "glt", "glti", "krp", "kp"), ablation=True)
    """Of narrow states: how gates and input grow to expand_ratio x d_model (HGRN2, table 2)."""
    expand_ratio: int = option(1, ablation=True)
    """With an expansion: states per channel."""

    def check(self, config: ModelConfig) -> None:
        if self.data_dependent_theta and self.hgrn1_state != "complex":
            raise InputError("model.data_dependent_theta needs hgrn1_state complex: a real state has no angle")
        if self.expansion != "none" and self.hgrn1_state != "narrow":
            raise InputError(f"model.expansion={self.expansion} is of narrow states: set hgrn1_state to narrow")
        if self.expansion == "none" and self.expand_ratio != 1:
            raise InputError(
                f"model.expand_ratio={self.expand_ratio} needs an expansion: naive, lr, glt, glti, krp, kp"
            )
        super().check(config)
        if self.expansion in ("glt", "glti") and config.d_model % self.expand_ratio:
            raise InputError(
                f"model.expansion={self.expansion} cuts d_model={config.d_model} into expand_ratio={self.expand_ratio} "
                f"groups of one width: choose a ratio that divides it"
            )


def preset(size: str, shape: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """With 7 d^2 in its mixer, d_ffn = 2 d, its authors' choice: 13 d^2 a layer, where others have 12.

    Narrow states, with or without an expansion, get the d_ffn that gives a layer as many parameters as the others have
    here, 4 d^2 + 3 d g, to within a multiple of 8, as HGRN2's table 3 compares them. Gates that are ablated leave
    d_ffn as it is: what they cost is a part of the ablation.
    """
    if changes.get("hgrn1_state") != "narrow" or "d_ffn" in changes:
        return {"d_ffn": 2 * shape["d_model"]}
    width = changes.get("d_model", shape["d_model"])
    check_size("d_model", width)
    names = ("hgrn1_state", "expansion", "expand_ratio")
    options = HGRN1Options(**{name: changes[name] for name in names if name in changes})
    model: Any = SimpleNamespace(d_model=width, options=options)
    options.check(model)
    layer, mixer = matrices(1, width, shape["d_ffn"]), mixer_size(model)
    d_ffn = 8 * round((layer - mixer) / (3 * width) / 8)
    if d_ffn < 8:
        raise InputError(
            f"model.expansion={options.expansion} with expand_ratio={options.expand_ratio} leaves a layer no MLP: "
            f"its mixer has {mixer:,} parameters, a whole layer of the other architectures {layer:,}; give "
            f"model.d_ffn, a smaller ratio or another expansion"
        )
    return {"d_ffn": d_ffn}


def mixer_class() -> type[Mixer]:
    from .mixer import HGRN1Mixer

    return HGRN1Mixer


def register_this() -> None:
    """Register this architecture."""
    register("hgrn1", mixer=mixer_class, options=HGRN1Options, preset=preset, label="HGRN1", color="#8c564b")
