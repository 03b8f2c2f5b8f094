"""The encoder of a classifier: whole rows of ids, read in both directions and pooled."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..config import ModelConfig
from ..encoder import EncoderConfig, reads_both
from ..errors import InputError
from ..ops.common import accumulator
from ..ops.fused.embedding import embed
from .cache import DecodeCache
from .decoder import Decoder
from .layout import check_ids
from .mixer import Mixer, Stream, sum_of_scans
from .positions import add_sinusoids


class PatchEmbedding(nn.Module):
    """Pixels [B, height x width x channels] -> [B, patches, d]: the numbers of a patch, 0 .. vocab_size - 1 scaled to
    -1 .. 1, times the weight [patch x patch x channels, d]; patches row by row."""

    def __init__(self, config: ModelConfig, encoder: EncoderConfig) -> None:
        super().__init__()
        assert encoder.image is not None and encoder.patch is not None
        self.patch, self.image, self.middle = encoder.patch, encoder.image, (config.vocab_size - 1) / 2
        self.weight = nn.Parameter(torch.empty(encoder.numbers, config.d_model))

    def forward(self, pixels: Tensor) -> Tensor:
        height, width, channels = self.image
        squares = pixels.view(-1, height // self.patch, self.patch, width // self.patch, self.patch, channels)
        numbers = squares.transpose(2, 3).flatten(3).flatten(1, 2)
        return (numbers.to(self.weight.dtype) / self.middle - 1) @ self.weight


class Encoder(Decoder):
    """Ids [B, context_length] -> what the head reads of each row, [B, 1, d], of two documents [B, 1, 4 d]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        assert config.encoder is not None
        self.encoder = encoder = config.encoder
        if encoder.patch is not None:
            self.embedding = PatchEmbedding(config, encoder)  # type: ignore[assignment]
        shape = encoder.n_positions(config.context_length), config.d_model
        self.positions = nn.Parameter(torch.empty(shape)) if encoder.positions == "learned" else None
        if own := [kind.arch for kind, mixer in self.kinds if mixer.one_direction]:
            raise InputError(f"architecture {own[0]!r}: its layers read one direction alone: no encoder has them")

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        documents: Tensor | None = None,
        cache: DecodeCache | None = None,
        use_cache: bool = False,
        backend: str | None = None,
    ) -> tuple[Tensor, None]:
        """Raises InputError for rows that do not fit, and for arguments of decoding and packing. Rows of fewer ids are
        read too, but not of images in patches."""
        least, most = 1 if self.encoder.patch is None else self.config.context_length, self.config.context_length
        if attention_mask is not None or documents is not None or cache is not None or use_cache:
            raise InputError("an encoder reads whole rows, their padding by its id: give ids alone")
        shape = list(input_ids.shape)
        if len(shape) != 2 or not least <= shape[1] <= most or shape[1] % self.encoder.documents:
            raise InputError(f"input_ids has shape {shape}: this encoder reads rows of {most} ids")
        check_ids(input_ids, self.config.vocab_size)
        ids = input_ids.unflatten(1, (self.encoder.documents, -1)).flatten(0, 1)
        padding = None if self.encoder.padding_id is None else ids == self.encoder.padding_id
        x = embed(ids, self.embedding, self.stream_dtype(ids.device.type))
        if self.positions is not None:
            x = x + self.positions[: x.shape[1]].to(x.dtype)
        elif self.encoder.positions == "sines":
            x = add_sinusoids(x, torch.arange(x.shape[1], device=x.device), self.config.matrix_std)
        lengths = torch.full(x.shape[:1], x.shape[1], device=x.device) if padding is None else (~padding).sum(1)
        streams = self._streams(x, padding, lengths, backend)
        if self.tpe is not None:
            stream = streams[self.kind_of_layer[0]]
            if stream.scans is None:
                x = self.tpe(x, stream, {})[0]
            else:  # the mean, because each may hold x itself
                x = sum_of_scans(self.tpe, x, stream) / len(stream.scans)
        u = self._pool(self.through_layers(x, streams), padding, lengths).unflatten(0, (-1, self.encoder.documents))
        if self.encoder.documents == 1:
            return u, None
        u, v = u.chunk(2, 1)
        return torch.cat([u, v, u * v, u - v], -1), None

    def _streams(self, x: Tensor, padding: Tensor | None, lengths: Tensor, backend: str | None) -> dict[str, Stream]:
        """The stream of each kind of layers: of softmax the rows, of linear ones their scans. Padding stays at the end
        of a line both ways, where a recurrence need not know of it."""
        steps, scans = torch.arange(x.shape[1], device=x.device), self._scans(x, lengths)

        def stream(kind: ModelConfig, mixer: type[Mixer]) -> Stream:
            linear = reads_both(kind)
            positions = steps[: scans.shape[-1]] if linear else steps
            return Stream(
                positions,
                None if linear else padding,
                attention_mask=None if padding is None else ~padding[:, None, None],
                causal=False,
                scans=scans if linear else None,
                backend=backend,
                bounds=self.bounds(kind, mixer),
                rotary=mixer.rotary(kind, positions, x),
            )

        return {kind.arch: stream(kind, mixer) for kind, mixer in self.kinds}

    def _scans(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Stream.scans for x [B, T, d]: forwards and backwards, of axes along rows and along columns. Backwards the
        last line comes first, so that each order is its own inverse."""
        steps, last = torch.arange(x.shape[1], device=x.device), lengths[:, None] - 1
        orders, line = [steps, torch.where(steps > last, steps, last - steps)], x.shape[1]
        if self.encoder.scan == "axes":
            line = math.isqrt(line)
            columns = steps.view(line, line).T.flatten()
            orders += [columns, last - columns]
        starts = x.shape[1] * torch.arange(len(x), device=x.device)[:, None]
        return torch.stack([starts + order for order in orders]).unflatten(2, (-1, line))

    def _pool(self, hidden: Tensor, padding: Tensor | None, lengths: Tensor) -> Tensor:
        """[B, T, d] -> [B, d], without padding, which is at a row's end."""
        if self.encoder.pooling == "first":
            return hidden[:, 0]
        if self.encoder.pooling == "last":
            return hidden[torch.arange(len(hidden), device=hidden.device), lengths - 1]
        real = hidden if padding is None else hidden.masked_fill(padding[..., None], 0.0)
        return (real.sum(1, dtype=accumulator(hidden)) / lengths[:, None]).to(hidden.dtype)

    def no_weight_decay(self) -> set[str]:
        """With the positions, which are vectors of single places."""
        return super().no_weight_decay() | ({"positions"} if self.positions is not None else set())
