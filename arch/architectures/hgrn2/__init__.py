"""HGRN2: a gated linear RNN with a matrix state. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...registry import register
from ..common.hgrn_options import HGRNOptions

if TYPE_CHECKING:
    from ...model.mixer import Mixer


class HGRN2Options(HGRNOptions):
    """The options of HGRN2, all shared with HGRN1."""


def mixer_class() -> type[Mixer]:
    from .mixer import HGRN2Mixer

    return HGRN2Mixer


def register_this() -> None:
    """Register this architecture."""
    register("hgrn2", mixer=mixer_class, options=HGRN2Options, label="HGRN2", color="#009e73")
