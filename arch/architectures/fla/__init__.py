"""Layers of flash-linear-attention: `fla:CLASS` is a kind of layers, CLASS one of its fla.layers. Imports no torch.

A class and its options are read from the package's source, which is not imported: a name in a file runs no code but
that of fla.layers, and that only where a model is built.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ...errors import InputError, nearest, shown
from ...options import COMMON, Options, option
from ...registry import RESERVED, Architecture, member, register_family
from ..common.ffn_beside import ffn_beside

if TYPE_CHECKING:
    from ...config import ModelConfig
    from ...model.mixer import Mixer

PREFIX = "fla"
INSTALL = "pip install 'linear-scaling[fla]'"
GIVEN = ("hidden_size", "num_heads", "layer_idx")  # arguments that a model's shape determines


@dataclass(frozen=True)
class FlaOptions(Options):
    """The arguments of a layer of flash-linear-attention: numbers, words, true or false, and null."""

    def __post_init__(self) -> None:
        for name in self.names():
            value = getattr(self, name)
            if not isinstance(value, (int, float, str, type(None))) or (
                isinstance(value, float) and not math.isfinite(value)
            ):
                raise InputError(f"model.{name} must be a number, a word, true, false or null, not {shown(value)}")

    def derived(self, config: ModelConfig) -> dict[str, int]:
        return {"head_dim": config.head_dim} if "head_dim" in self.names() else {}


def kind_of_layers(arch: str) -> Architecture:
    """The architecture fla:CLASS. Raises InputError where the package is not installed, or has no such layer."""
    return _kind(arch, _folder())


@lru_cache
def _kind(arch: str, folder: Path) -> Architecture:
    name = member(arch)
    modules = _classes(folder)
    if name not in modules:
        raise InputError(f"{arch}: flash-linear-attention has no layer {name!r}{nearest(name, list(modules))}")
    source = (folder / f"{modules[name]}.py").read_text(encoding="utf-8")
    fields = [
        (argument, "object", option(None if argument == "head_dim" else default))
        for argument, default in _arguments(source, name).items()
        if argument not in (*GIVEN, *COMMON, *RESERVED)
    ]
    options: Any = dataclasses.make_dataclass(f"{name}Options", fields, bases=(FlaOptions,), frozen=True)

    def matrices(model: Any) -> dict[str, int]:
        from .mixer import tree_of

        whole: Any = SimpleNamespace(**{"arch": arch, "norm_eps": 1e-6, "chunk_size": 64} | vars(model))
        return tree_of(whole).matrices

    rule = ffn_beside(options, matrices)

    def preset(size: str, shape: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
        """The d_ffn that gives a layer as many parameters as the others have; a ladder fits its own."""
        return rule(size, shape, changes) if size else {}

    return Architecture(
        name=arch,
        mixer=mixer_class,
        norm="rms",
        options=options,
        preset=preset,
        label=name,
        color=None,
        aliases=(),
        constant_state="attn_state" not in source,
        warn=None,
        hugging_face=None,
        ladder=(),
        in_patterns=True,
        module=__name__,
        plugin=None,
        gpus_alone=True,
    )


def mixer_class() -> type[Mixer]:
    from .mixer import FlaMixer

    return FlaMixer


def _folder() -> Path:
    """Of the module fla.layers. The package is not imported."""
    spec = importlib.util.find_spec("fla")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(place) / "layers" / "__init__.py").is_file():
            return Path(place) / "layers"
    raise InputError(f"layers fla:.. are flash-linear-attention's, which is not installed here: {INSTALL}")


def _classes(folder: Path) -> dict[str, str]:
    """{class: module} of fla.layers."""
    tree = ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module]
    return {alias.name: str(node.module) for node in imports for alias in node.names if alias.asname is None}


def _arguments(source: str, name: str) -> dict[str, Any]:
    """{argument: default} of a class's __init__, of those whose default is a number, a word, true, false or None."""
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name]
    made = [
        node for own in classes for node in own.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    ]
    if not made:
        return {}
    arguments = made[0].args
    count = len(arguments.defaults)
    pairs = [*zip(arguments.args[-count:] if count else [], arguments.defaults, strict=True)]
    pairs += [(arg, value) for arg, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if value]
    literals = {}
    for argument, value in pairs:
        try:
            default = ast.literal_eval(value)
        except ValueError:
            continue
        if isinstance(default, (int, float, str, type(None))):
            literals[argument.arg] = default
    return literals


def register_this() -> None:
    """Register the family of architectures fla:CLASS."""
    register_family(PREFIX, kind_of_layers)
