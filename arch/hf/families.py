"""The fields and parameter names of transformers' model types, for conversions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from ..registry import ARCHITECTURES

if TYPE_CHECKING:
    from ..config import ModelConfig

TOKENS = ("use_cache", "pad_token_id", "bos_token_id", "eos_token_id")  # fields that do not change the function


class Fields(Protocol):
    """A configuration of the library, read with its defaults. kv_heads: heads of keys and values, where there are fewer
    than of queries; config: the fields as given."""

    kv_heads: int | None
    config: dict[str, Any]

    def __getitem__(self, name: str) -> Any: ...

    def refuse(self, name: str, instead: str) -> NoReturn: ...


@dataclass(frozen=True)
class Family:
    """A model type of the library.

    arch: our architecture; classes: the library's classes of configuration and model; defaults: fields that are read,
    with the library's values for those that a config.json leaves out; only: the values that our model can express;
    ignored: fields that do not change the function (initialisation, kernels, ids of tokens); names, in_layer: names of
    parameters outside and inside of layers, ours -> theirs; layers: the library's name of the list of layers;
    ours(fields): ModelConfig's fields beside those that all families share; theirs(config): the library's fields,
    likewise.
    """

    arch: str
    model_type: str
    classes: tuple[str, str]
    defaults: dict[str, Any]
    only: dict[str, tuple[Any, ...]]
    ignored: tuple[str, ...]
    layers: str
    names: dict[str, str]
    in_layer: dict[str, str]
    ours: Callable[[Fields], dict[str, Any]]
    theirs: Callable[[ModelConfig], dict[str, Any]]

    def their_name(self, ours: str) -> str:
        """The library's name of our parameter."""
        if not ours.startswith("decoder.layers."):
            return self.names[ours]
        index, name = ours.removeprefix("decoder.layers.").split(".", 1)
        return f"{self.layers}.{index}.{self.in_layer[name]}"


def families() -> dict[str, Family]:
    """The families of all architectures, by the library's name of the model type."""
    every = [arch.hugging_face() for arch in ARCHITECTURES.values() if arch.hugging_face is not None]
    return {family.model_type: family for family in every}
