"""Images as training reads them: cut, flipped and changed at random, and mixed in pairs, by timm (the extra `images`).

An image is drawn by (seed, step, row) alone, so that a run which is continued reads what it would have read. Rows 2k
and 2k + 1 of a step are mixed with each other: mixup (Zhang et al. 2018, arXiv:1710.09412) or CutMix (Yun et al. 2019,
arXiv:1905.04899), of which each step takes one, with one weight and one place for all its pairs, as timm does for a
batch. The target is then of both classes (arch.soft_targets). Erased places are filled with noise, which stays within
what pixels can be; everything is rounded to whole pixel values once, at the end.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from arch.errors import InputError
from arch.soft_targets import soft_target

from .files import reading
from .labelled import LabelledSet
from .pixels import open_image
from .settings import Augmentation


@contextmanager
def seeded(*key: object) -> Iterator[None]:
    """Python's, numpy's and torch's generators as if seeded by `key`; afterwards they are what they were."""
    import torch

    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    seed = int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "little")
    try:
        random.seed(seed)
        np.random.seed(seed % (1 << 32))
        torch.default_generator.manual_seed(seed)
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


class Drawn:
    """The training split of `images` as data.loader.Draw. Raises InputError where it holds no files of images, or timm
    cannot be imported."""

    def __init__(self, images: LabelledSet, augmentation: Augmentation, seed: int) -> None:
        if not images.facts.encoded or images.facts.image is None:
            raise InputError("corpus.augment: is of folders of images (images:FOLDER:CLASSES:SIZE): leave it out")
        try:
            from timm.data import Mixup, create_transform
        except (ImportError, RuntimeError) as error:  # RuntimeError: torchvision is of another build than torch
            why = " ".join(str(error).split())
            raise InputError(
                f"corpus.augment: timm cannot be imported ({why}): pip install 'linear-scaling[images]'"
            ) from None
        self.images, self.settings, self.seed = images, augmentation, seed
        with reading(f"corpus.augment.policy: {augmentation.policy!r}", "write one of timm's policies, or null"):
            self._transform = create_transform(
                images.facts.image[0],
                is_training=True,
                auto_augment=augmentation.policy,
                interpolation="bicubic",
                re_prob=augmentation.erase,
                re_mode="pixel",
            )
        self._mix = None
        if augmentation.mixup or augmentation.cutmix:
            # of two classes and without smoothing: its targets are then the weights of the pair
            self._mix = Mixup(augmentation.mixup, augmentation.cutmix, label_smoothing=0.0, num_classes=2)

    def __call__(self, starts: np.ndarray, step: int, rows: slice | None = None) -> np.ndarray:
        """int64 [rows, ids of a row + 1]: the chosen rows of the step whose examples begin at `starts`, and their
        targets. Raises InputError where an image cannot be read."""
        examples = (starts // self.images.facts.row).tolist()
        chosen = range(len(examples))[rows or slice(None)]
        batch = np.empty((len(chosen), self.images.facts.row + 1), np.int64)
        for first in sorted({row - row % 2 for row in chosen}):
            drawn = self._pair(step, first, examples[first : first + 2])
            for row in range(first, first + len(drawn)):
                if row in chosen:
                    batch[chosen.index(row)] = drawn[row - first]
        return batch

    def _pair(self, step: int, first: int, examples: list[int]) -> np.ndarray:
        """int64 [1 or 2, ids of a row + 1]: two rows that are mixed, or the last one of an odd batch."""
        import torch

        pixels, weights = [], [0.0] * len(examples)
        for row, example in enumerate(examples, first):
            with seeded("image", self.seed, step, row), reading(f"image {example} of the training split"):
                pixels.append(self._transform(open_image(self._file(example)).convert("RGB")))
        images = torch.stack(pixels)
        if self._mix is not None and len(examples) == 2:
            with seeded("mixture", self.seed, step):
                images, shares = self._mix(images, torch.arange(2))
            weights = [float(shares[0, 1]), float(shares[1, 0])]
        *_, normalize = [part for part in self._transform.transforms if hasattr(part, "mean")]
        shape = (-1, 1, 1)
        values = (images * normalize.std.view(shape) + normalize.mean.view(shape)) * 255
        ids = values.round().clamp(0, 255).permute(0, 2, 3, 1).flatten(1).to(torch.int64).numpy()
        labels = self.images.train.labels[examples].tolist()
        targets = [
            soft_target(label, other, weight, self.settings.smoothing)
            for label, other, weight in zip(labels, reversed(labels), weights, strict=True)
        ]
        return np.concatenate([ids, np.array(targets)[:, None]], axis=1)

    def _file(self, example: int) -> Any:
        split = self.images.train
        return split.tokens[split.offsets[example] : split.offsets[example + 1]]
