r"""A layer of flash-linear-attention as a token mixer. Its kernels run on GPUs alone.

The layer is that package's, with its own initialisation, drawn from a seed that the model's generator gives: neither
the model's rule for matrices nor its division of what writes to the residual stream holds for it. Weight decay leaves
alone what the layer marks so. It reads packed documents by `cu_seqlens`, padding by `attention_mask` and decodes by
`past_key_values`; before the first use of each, the layer's outputs are compared with those for the same tokens read
alone, and it is refused where they differ.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...errors import InputError
from ...model.cache import LayerCache
from ...model.mixer import Mixer, Stream
from ...registry import member

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...config import ModelConfig

SHARED = ("d_model", "norm_eps", "chunk_size")  # fields that are arguments of some layers by the same name
UNKEPT = "unkept"  # in the cache of a pass that keeps no state, as in training
SEEN = "seen"  # in any other: tokens of the current document
LENGTH, CUT = 70, 30  # tokens of a comparison, and those of its first part
LARGEST = 0.1  # difference of a token's output, in its own norm: another kernel in bf16, say, gives 0.01


class FlaMixer(Mixer):
    def __init__(self, config: ModelConfig, layer: int) -> None:
        nn.Module.__init__(self)
        self.config, self.layer = config, layer
        self.inner = made(config, seed=0)
        spared = [name for name, p in self.inner.named_parameters() if getattr(p, "_no_weight_decay", False)]
        self.time_scales = tuple(f"inner.{name}" for name in spared)  # type: ignore[misc]
        self.known: dict[str, str] = {}  # what is wrong with each reading that was compared, "" where nothing is

    mlp_activation = "silu"
    one_direction = True

    def reset_own_parameters(self, generator: torch.Generator) -> None:
        seed = int(torch.randint(2**62, (), generator=generator))
        self.inner.load_state_dict(made(self.config, seed).state_dict())

    def forward(self, x: Tensor, stream: Stream, cache: LayerCache) -> tuple[Tensor, LayerCache]:
        keeps = not torch.is_grad_enabled()
        self._require("padding", stream.padding_mask is not None, x)
        self._require("packed documents", stream.document_starts is not None, x)
        self._require("tokens after a state", bool(cache), x)
        if UNKEPT in cache:
            raise InputError(
                f"{self.config.arch}: a pass with gradients keeps no state to go on from: use torch.no_grad"
            )
        out, state = self._read(x, stream.padding_mask, stream.document_starts, cache, keeps)
        if not state:
            return out, {UNKEPT: x.new_empty(x.shape[0], 0)}
        return out, state | {SEEN: (stream.positions[..., -1] + 1).expand(x.shape[0])}

    def _read(
        self, x: Tensor, padding: Tensor | None, starts: Tensor | None, cache: LayerCache, keeps: bool
    ) -> tuple[Tensor, LayerCache]:
        """The layer's outputs [B, T, d] and, with `keeps`, its state."""
        more: dict[str, Any] = {}
        given, past = x, None
        if keeps or cache:
            from fla.models.utils import Cache

            past = more["past_key_values"] = Cache()
            if cache:
                # copies: convolutions write into the state that they are given
                states = _nested({name: value.clone() for name, value in cache.items() if name != SEEN})
                past.update(layer_idx=0, offset=int(cache[SEEN].max()), **states)
        if padding is not None:
            more["attention_mask"] = (~padding).long()
        if starts is not None:
            first = starts.clone()
            first[:, 0] = True
            bounds = first.flatten().nonzero().flatten()
            more["cu_seqlens"] = nn.functional.pad(bounds, (0, 1), value=first.numel()).int()
            given = x.reshape(1, -1, x.shape[-1])
        try:
            out = self._called(given, use_cache=past is not None, **more)
        except RuntimeError as error:
            if x.is_cuda:
                raise
            raise InputError(f"{self.config.arch} runs on GPUs alone: {' '.join(str(error).split())}") from error
        out = (out[0] if isinstance(out, tuple) else out).reshape(x.shape)
        if not keeps or past is None or not len(past):
            return out, {}
        state = _flat(past[0])
        if starts is not None:  # of each row's last document
            last = first.sum(1).cumsum(0) - 1
            state = {name: value[last] for name, value in state.items()}
        return out, state

    def _called(self, x: Tensor, **more: Any) -> Any:
        """What the layer returns; in bf16 from the time on that its kernels refuse fp32."""
        if type(self.inner) not in _IN_BF16:
            try:
                return self.inner(x, **more)
            except AssertionError as error:
                if "bfloat16" not in str(error):
                    raise
                _IN_BF16.add(type(self.inner))
        with torch.autocast(x.device.type, torch.bfloat16):
            return self.inner(x, **more)

    def _require(self, what: str, needed: bool, like: Tensor) -> None:
        """Raise InputError where the layer is to read what it does not read."""
        if not needed:
            return
        if what not in self.known:
            with torch.no_grad():
                self.known[what] = self._problem(READINGS[what], like)
        if self.known[what]:
            raise InputError(f"{self.config.arch} cannot read {what}: {self.known[what]}")

    def _problem(self, reading: Callable[[FlaMixer, Tensor], tuple[Tensor, Tensor]], like: Tensor) -> str:
        x = torch.randn(2, LENGTH, self.config.d_model, generator=torch.Generator().manual_seed(0)).to(like)
        try:
            actual, expected = (y.double() for y in reading(self, x))
        except Exception as error:
            return f"{type(error).__name__}: {' '.join(str(error).split())}"
        off = (actual - expected).norm(dim=-1) / expected.norm(dim=-1).clamp(min=1e-12)
        worst = off.nan_to_num(nan=float("inf")).max().item()
        return "" if worst <= LARGEST else f"a token's output differs by {worst:.2g} of its norm from that of it alone"


def _padded(mixer: FlaMixer, x: Tensor) -> tuple[Tensor, Tensor]:
    padding = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
    padding[1, :CUT] = True
    out, _ = mixer._read(x, padding, None, {}, False)
    alone, _ = mixer._read(x[1:, CUT:], None, None, {}, False)
    return out[1:, CUT:], alone


def _packed(mixer: FlaMixer, x: Tensor) -> tuple[Tensor, Tensor]:
    starts = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
    starts[:, CUT] = True
    out, _ = mixer._read(x, None, starts, {}, False)
    return out, torch.cat([mixer._read(part, None, None, {}, False)[0] for part in x.tensor_split([CUT], 1)], 1)


def _after_a_state(mixer: FlaMixer, x: Tensor) -> tuple[Tensor, Tensor]:
    cache: LayerCache = {}
    parts, seen = [], torch.zeros(len(x), dtype=torch.int64, device=x.device)
    for part in x.split([CUT, LENGTH - CUT - 2, 1, 1], 1):
        out, cache = mixer._read(part, None, None, cache, True)
        parts.append(out)
        seen = seen + part.shape[1]
        cache = cache and cache | {SEEN: seen}
    return torch.cat(parts, 1), mixer._read(x, None, None, {}, False)[0]


_IN_BF16: set[type[nn.Module]] = set()  # classes whose kernels have refused fp32; for few tokens they may take it
READINGS = {"padding": _padded, "packed documents": _packed, "tokens after a state": _after_a_state}


def _flat(states: dict[str, Any]) -> LayerCache:
    """The tensors of a state of the package, by path."""
    tensors: LayerCache = {}
    for name, value in states.items():
        if isinstance(value, Tensor):
            tensors[name] = value
        elif isinstance(value, (tuple, list)):
            tensors |= {f"{name}.{index}": part for index, part in enumerate(value) if isinstance(part, Tensor)}
        elif value is not None:
            raise InputError(f"flash-linear-attention's {name} is a {type(value).__name__}: no tensors to keep")
    return tensors


def _nested(tensors: LayerCache) -> dict[str, Any]:
    """The reverse of `_flat`."""
    states: dict[str, Any] = {}
    for path, value in tensors.items():
        name, dot, _ = path.partition(".")
        states[name] = (*states.get(name, ()), value) if dot else value
    return states


def made(config: ModelConfig, seed: int) -> nn.Module:
    """The layer, initialised as its class does it, from a seed of its own. Raises InputError where the class refuses
    its options."""
    name = member(config.arch)
    try:
        cls = getattr(importlib.import_module("fla.layers"), name)
    except (ImportError, AttributeError) as error:
        raise InputError(f"{config.arch}: cannot be imported: {' '.join(str(error).split())}") from error
    options = {option: getattr(config.options, option) for option in config.options.names()}
    accepted = inspect.signature(cls.__init__).parameters
    shape = {"hidden_size": config.d_model, "num_heads": config.n_heads, "layer_idx": 0}
    shape |= {field: getattr(config, field) for field in SHARED}
    given = {argument: value for argument, value in (shape | options).items() if argument in accepted}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            inner = cls(**given)
        except Exception as error:
            raise InputError(f"{config.arch}: {type(error).__name__}: {' '.join(str(error).split())}") from error
    assert isinstance(inner, nn.Module)
    return inner


@dataclass(frozen=True)
class Tree:
    """Of a layer: the weights of its linear modules and of everything else by name, and its whole-number attributes, as
    num_heads and head_k_dim."""

    matrices: dict[str, int]
    vectors: dict[str, int]
    numbers: dict[str, int]


def tree_of(config: ModelConfig) -> Tree:
    """The tree of modules of a layer. No memory is allocated for it."""
    return _tree(config.arch, config.n_heads, config.options, *(getattr(config, field) for field in SHARED))


@lru_cache(maxsize=256)
def _tree(arch: str, n_heads: int, options: Any, *shared: Any) -> Tree:
    config: Any = SimpleNamespace(arch=arch, n_heads=n_heads, options=options, **dict(zip(SHARED, shared, strict=True)))
    with torch.device("meta"):
        inner = made(config, seed=0)
    linear = {f"{name}.weight" for name, module in inner.named_modules() if isinstance(module, nn.Linear)}
    sizes = {name: parameter.numel() for name, parameter in inner.named_parameters()}
    return Tree(
        {f"mixer.{name.removesuffix('.weight')}": size for name, size in sizes.items() if name in linear},
        {f"mixer.{name}": size for name, size in sizes.items() if name not in linear},
        {name: value for name, value in vars(inner).items() if type(value) is int},
    )
