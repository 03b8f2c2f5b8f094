"""EncoderConfig: what makes a model an encoder that names the class of a whole row. Imports no torch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import InputError
from .options import check_choice, check_size
from .registry import architecture
from .soft_targets import CLASSES

if TYPE_CHECKING:
    from .config import ModelConfig

POOLINGS = ("mean", "first", "last")
POSITIONS = ("none", "learned", "sines")
SCANS = ("line", "axes")


@dataclass(frozen=True)
class EncoderConfig:
    """A row of context_length ids is an example: `documents` of equal length, each filled up at its end by padding_id
    (None: never). Layers read all of a document; its pooled hidden states u, of two documents [u, v, u v, u - v], go
    through a linear head to n_classes logits.

    pooling: the mean over all positions but padding, or the first or last of them. positions: learned ones, or fixed
    sines of the embedding's standard deviation at the start, are added to the embedding. patch: documents are images,
    of height, width and channels `image`, and a position is a square of patch x patch pixels, projected to d_model;
    None: a position is an id. scan: linear recurrences read a document as one line of positions, or (axes, of square
    images in patches) each row and each column of an image as a line.
    """

    n_classes: int
    padding_id: int | None = None
    documents: int = 1
    image: tuple[int, int, int] | None = None
    patch: int | None = None
    pooling: str = "mean"
    positions: str = "none"
    scan: str = "line"

    @classmethod
    def from_dict(cls, fields: Any) -> EncoderConfig:
        """From plain data. Raises InputError for unknown or missing fields."""
        names = [field.name for field in dataclasses.fields(cls)]
        if not isinstance(fields, Mapping) or "n_classes" not in fields or set(fields) - set(names):
            raise InputError(f"model.encoder: must have n_classes, and of {', '.join(names)} what differs from usual")
        image = fields.get("image")
        return cls(**{**fields, "image": None if image is None else tuple(image)})

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without a scan by lines, so that hashes of runs are those from before there were others."""
        fields = dataclasses.asdict(self)
        return fields if self.scan != "line" else {k: v for k, v in fields.items() if k != "scan"}

    @property
    def numbers(self) -> int:
        """Ids that make one position."""
        return 1 if self.patch is None or self.image is None else self.patch**2 * self.image[2]

    @property
    def pooled(self) -> int:
        """Vectors of d_model channels that the head reads."""
        return 1 if self.documents == 1 else 4

    def n_positions(self, context_length: int) -> int:
        """Positions of a document in rows of context_length ids."""
        return context_length // (self.documents * self.numbers)

    def check(self, config: ModelConfig) -> None:
        """Raise InputError where fields contradict each other or `config`, the model or its layers of a kind."""
        check_size("encoder.n_classes", self.n_classes, 2)
        if self.n_classes > CLASSES:
            raise InputError(f"model.encoder.n_classes={self.n_classes}: a classifier has at most {CLASSES:,} classes")
        check_choice("encoder.pooling", self.pooling, POOLINGS)
        check_choice("encoder.positions", self.positions, POSITIONS)
        check_choice("encoder.scan", self.scan, SCANS)
        if self.scan == "axes" and (self.image is None or self.patch is None or self.image[0] != self.image[1]):
            raise InputError("model.encoder.scan: axes are rows and columns of square images in patches: scan a line")
        check_size("encoder.documents", self.documents)
        if self.documents > 2:
            raise InputError(f"model.encoder.documents must be 1 or 2, not {self.documents}")
        if self.padding_id is not None:
            check_size("encoder.padding_id", self.padding_id, 0)
        if config.context_length % self.documents:
            raise InputError(f"model.context_length={config.context_length}: is not {self.documents} equal documents")
        if self.patch is not None:
            check_size("encoder.patch", self.patch)
            if self.image is None or self.padding_id is not None:
                raise InputError("model.encoder.patch: patches are cut of images without padding: leave it out")
            height, width, channels = self.image
            if height % self.patch or width % self.patch:
                raise InputError(f"model.encoder.patch={self.patch}: does not divide images of {height} x {width}")
            if height * width * channels * self.documents != config.context_length:
                raise InputError(f"model.encoder.image: {self.image} is not a row of {config.context_length} numbers")
        if getattr(config.options, "window", 0):
            raise InputError("model.window: an encoder's attention reads all of a document: leave it out")


def reads_both(config: ModelConfig) -> bool:
    """Whether layers of a kind are a linear recurrence that an encoder runs in both directions. Softmax layers read all
    of a document by themselves."""
    return config.encoder is not None and architecture(config.arch).constant_state


def scans_of(config: ModelConfig, length: int) -> tuple[int, int, int]:
    """How layers of a kind read `length` positions of a document: how many times, each time as how many lines, of how
    many positions. Linear recurrences of an encoder read a line forwards and backwards, of axes rows and columns so."""
    encoder = config.encoder
    if encoder is None or not reads_both(config):
        return 1, 1, length
    if encoder.scan == "line":
        return 2, 1, length
    side = math.isqrt(length)
    return 4, side, side
