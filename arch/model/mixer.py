"""The base class of token mixers, and the stream of positions and masks that every mixer gets beside its input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..kernel_config import WIDEST_HEAD
from ..ops.fused.linear import fused_linear
from ..registry import architecture
from .cache import LayerCache

if TYPE_CHECKING:
    from ..config import ModelConfig
    from .sequence import SequenceGroup


@dataclass(frozen=True)
class Stream:
    """The arguments that all layers of a kind share in one forward pass beside the residual stream."""

    positions: Tensor  # index of each token in its document, int64 [T] or [B, T]
    padding_mask: Tensor | None = None  # bool [B, T], True for padding; None: there is none
    document_starts: Tensor | None = None  # bool [B, T], True where another document begins; None: nowhere
    attention_mask: Tensor | None = None  # bool [B or 1, 1, T or 1, S], LLaMA: True where t may attend to s; None: all
    backend: str | None = None  # backend of the sequence operations; None: the fast one
    bounds: Sequence[Tensor] | None = (
        None  # HGRN: each of its layers' lower bounds of the forget gates, [d], in [0, 1), fp32
    )
    rotary: tuple[Tensor, Tensor] | None = None  # LLaMA: the rotary angles' cosines and sines, the same in all layers
    causal: bool = True  # softmax without a mask reads no later tokens; False: of an encoder
    sequence: SequenceGroup | None = None  # the processes that each read a part of the rows; None: whole rows
    scans: Tensor | None = None  # of an encoder, int64 [k, B, n, L]: `Scans` has them; None: rows are read as they are

    def mask(self, x: Tensor, value: float = 0.0) -> Tensor:
        """x [B, T, ..] with `value` at padded tokens."""
        if self.padding_mask is None:
            return x
        return x.masked_fill(self.padding_mask.reshape(*self.padding_mask.shape, *[1] * (x.dim() - 2)), value)

    def bound(self, layer: int) -> Tensor:
        """The lower bound [d] of one layer's forget gates, in [0, 1)."""
        assert self.bounds is not None
        return self.bounds[layer]


class PositionEncoding(nn.Module):
    """A module between the embedding and the first layer, called like a mixer, with a state of its own."""

    def reset_own_parameters(self, generator: torch.Generator) -> None:
        """Initialise what the model's general rule does not fit, after it has run."""

    def forward(self, x: Tensor, stream: Stream, cache: LayerCache) -> tuple[Tensor, LayerCache]:
        raise TypeError(f"{type(self).__name__} must define forward")


class Mixer(nn.Module):
    """Projections of x, an output projection, and heads of config.head_dim channels.

    config, layer: of the layer's kind, as if the model had no other layers. names: the projections from d to d, or
    {name: width} for other widths; inner: channels that the output projection reads (default: d). The class attributes
    describe the mixer to the rest of the model.
    """

    has_mlp: ClassVar[bool] = True  # a layer puts an MLP behind this token mixer
    mlp_activation: ClassVar[str] = ""  # of that MLP's gate: "silu", or none
    mlp_gate: ClassVar[bool] = True  # that MLP has a gate; without one it is two matrices with relu between them
    keys_a_channel: ClassVar[int] = 1  # key channels of the sequence operation for each channel of a head
    fused: ClassVar[tuple[str, ...]] = ()  # projections that hold several matrices, narrow ones among them
    exchanges_heads: ClassVar[bool] = False  # the `mix` of this class attends to whole rows by Stream.sequence
    one_direction: ClassVar[bool] = False  # it has a `forward` that does not go through `mixed`: no encoder has it
    time_scales: ClassVar[tuple[str, ...]] = ()  # parameters, vectors aside, that weight decay must leave alone

    def __init__(
        self, config: ModelConfig, layer: int, names: tuple[str, ...] | dict[str, int] = (), inner: int | None = None
    ) -> None:
        super().__init__()
        self.config, self.layer = config, layer
        widths = names if isinstance(names, dict) else dict.fromkeys(names, config.d_model)
        self.project = nn.ModuleDict({name: nn.Linear(config.d_model, w, bias=False) for name, w in widths.items()})
        self.out = nn.Linear(inner or config.d_model, config.d_model, bias=False)

    @staticmethod
    def rotary(config: ModelConfig, positions: Tensor, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Stream.rotary, for hidden states like x."""
        return None

    @staticmethod
    def position_encoding(config: ModelConfig) -> PositionEncoding | None:
        """The module between the embedding and the first layer; None: there is none."""
        return None

    @classmethod
    def gamma_shape(cls, config: ModelConfig) -> tuple[int, int] | None:
        """The shape [layers, channels] of gamma, the parameter of all layers' bounds; None: there is none."""
        return None

    @classmethod
    def bounds(cls, config: ModelConfig, gamma: Tensor) -> Tensor:
        """The bounds of all layers, [layers, channels], from gamma; Stream.bounds has them layer by layer."""
        raise TypeError(f"{cls.__name__} must define bounds")

    @classmethod
    def reset_gamma(cls, config: ModelConfig, gamma: Tensor, generator: torch.Generator) -> None:
        """Initialise gamma in place, which is 0."""

    def reset_own_parameters(self, generator: torch.Generator) -> None:
        """Initialise what the model's general rule (Decoder.reset_parameters) does not fit, after it has run."""

    def together(self, *modules: nn.Module) -> tuple[Any, ...]:
        """The modules as `fused_linear` takes them: as one product where the sequence operation has kernels for heads
        this wide and reads all outputs as they are. Otherwise as single products, because one output would keep the
        others in memory."""
        kernels = self.config.head_dim * self.keys_a_channel <= WIDEST_HEAD
        return (modules,) if kernels and self.reads_projections() else modules

    def reads_projections(self) -> bool:
        """Whether the sequence operation reads the projections of x as they are."""
        return True

    def heads(self, x: Tensor) -> Tensor:
        """[B, T, d] -> [B, T, H, p]."""
        return x.unflatten(-1, (self.config.n_heads, self.config.head_dim))

    def reading(self, stream: Stream, cache: LayerCache) -> dict[str, Any]:
        """How a sequence operation reads these tokens: from the cached state on, where documents begin, by what."""
        return {
            "initial_state": cache.get("state"),
            "chunk_size": self.config.chunk_size,
            "backend": stream.backend,
            "document_starts": stream.document_starts,
        }

    def mix(self, x: Tensor, stream: Stream, cache: LayerCache) -> tuple[Tensor, LayerCache]:
        """x [B, T, d], normalised -> the input of the output projection [B, T, inner], and the cache after these
        tokens. cache: the cache before them, {} at the beginning.

        A padded token (Stream.padding_mask) must leave the state as it is: decay 1, no input. A token with
        Stream.document_starts True must not see earlier tokens.
        """
        raise TypeError(f"{type(self).__name__} must define mix, or forward")

    def mixed(self, x: Tensor, stream: Stream, cache: LayerCache) -> tuple[Tensor, LayerCache]:
        """`mix`, or of Stream.scans what it gives for each of them, added up at each token."""
        if stream.scans is None:
            return self.mix(x, stream, cache)
        return sum_of_scans(self.mix, x, stream), cache

    def forward(self, x: Tensor, stream: Stream, cache: LayerCache) -> tuple[Tensor, LayerCache]:
        """`mixed` behind the output projection, [B, T, d]. A subclass may define this instead."""
        answer = self.mixed(x, stream, cache)
        if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
            raise TypeError(f"{type(self).__name__}.mix must return its output and the cache, a dict")
        mixed, cache = answer
        return fused_linear(mixed, self.out)[0], cache

    def forget_gates(self, x: Tensor, stream: Stream) -> Tensor | None:
        """The factor in [0, 1] by which each token decays the state, [B, T, channels or heads], for the x of `forward`.
        None: the mixer has no such gate."""
        return None

    def token_mixing(self, x: Tensor, stream: Stream) -> Tensor | None:
        """The weights [B, H, T, T] with which token t's output, before norm and gate, reads token s's value; 0 for
        s > t. None: the mixer cannot give them."""
        return None

    def mixing_factors(self, x: Tensor, stream: Stream) -> tuple[Tensor, Tensor] | None:
        """Where the weights of `token_mixing` are magnitudes times rotations, as HGRN's eq. 7: both [B, H, T, T], the
        mean magnitude and the mean cosine of the angles between tokens s and t. None: they are not."""
        return None

    def additive_mixing(self, x: Tensor, stream: Stream) -> Tensor | None:
        """`token_mixing` by the additive recurrence that softmax attention is, over each token's past anew. None: the
        mixer is no softmax attention."""
        return None

    def unit_values(self, x: Tensor) -> Tensor:
        """Values [B, T, H, T] that are unit vectors: token s has a 1 in channel s alone. A mixer's output for them is
        its `token_mixing`, with H after T."""
        batch, length = x.shape[:2]
        unit = torch.eye(length, dtype=x.dtype, device=x.device)
        return unit[None, :, None].expand(batch, length, self.config.n_heads, length)


def sum_of_scans(read: Callable[..., tuple[Tensor, LayerCache]], x: Tensor, stream: Stream) -> Tensor:
    """What `read`, called like a mixer, gives for the scans of x [B, T, d], added up at each token. All weights are
    shared, as in HGRN's code (OpenNLPLab's hgru, BiHgru1d and BiHgru2_1d, and with rows and columns hgru2d; there the
    sum is before the norm, and complex angles are each direction's own)."""
    assert stream.scans is not None
    return Scans.apply(read(Scans.apply(x, stream.scans, False), stream, {})[0], stream.scans, True)


class Scans(torch.autograd.Function):
    """x [B, T, d] in the k orders of Stream.scans, each as n lines of L = T / n tokens, [k B n, L, d]; `add`: from
    these all k added up at each token, [B, T, d]. Either is the other's gradient.

    places: Stream.scans, int64 [k, B, n, L], where each token is among all B T. The first order is x's own; each is its
    own inverse, so that tokens that were read by it come back by it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor, add: bool) -> Tensor:
        ctx.save_for_backward(places)
        ctx.add = add
        if not add:
            return x.flatten(0, 1)[places.flatten(0, 2)]
        orders = places.flatten(2)
        first, *others = x.chunk(len(orders))
        total = first.reshape(*orders.shape[1:], x.shape[-1])
        for other, order in zip(others, orders[1:], strict=True):
            total = total + other.flatten(0, 1)[order]
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return Scans.apply(grads[0], *ctx.saved_tensors, not ctx.add), None, None


def mixer_of(arch: str) -> type[Mixer]:
    """Import the token mixer of a known architecture. Raises InputError where it is no subclass of Mixer."""
    try:
        mixer = architecture(arch).mixer()
    except (ImportError, AttributeError) as error:
        raise InputError(f"architecture {arch!r}: its mixer cannot be imported: {error}") from error
    if not (isinstance(mixer, type) and issubclass(mixer, Mixer)):
        raise InputError(f"architecture {arch!r}: its mixer {mixer!r} is no subclass of arch.model.mixer.Mixer")
    return mixer
