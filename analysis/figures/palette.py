"""Names and colours of the architectures in every picture and table."""

from __future__ import annotations

from collections.abc import Sequence

NAMES = {
    "llama": "LLaMA",
    "tnl": "TNL",
    "hgrn2": "HGRN2",
    "cosformer2": "cosFormer2",
    "hgrn1": "HGRN1",
    "mamba2": "Mamba2",
    "mamba1": "Mamba1",
}
ARCH_COLORS = {
    "llama": "#0072b2",
    "tnl": "#d55e00",
    "hgrn2": "#009e73",
    "cosformer2": "#b4479b",
    "hgrn1": "#8c564b",
    "mamba2": "#7f6d00",
    "mamba1": "#56b4e9",
}
SPARE_COLORS = ("#000000", "#a6761d", "#5e4fa2", "#666666")


def name_of(arch: str) -> str:
    return NAMES.get(arch, arch)


def arch_colors(archs: Sequence[str]) -> dict[str, str]:
    spare = iter(SPARE_COLORS * len(archs))
    return {arch: ARCH_COLORS.get(arch) or next(spare) for arch in archs}
