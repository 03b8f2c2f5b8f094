"""The bytes of an image's file as pixels."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np

from arch.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

BICUBIC = 3  # PIL.Image.Resampling's


def open_image(content: np.ndarray) -> Image:
    """The image of a file's bytes, uint8 [n], of which only the header is read. Raises InputError without Pillow;
    whatever Pillow raises for what is no image."""
    try:
        from PIL import Image
    except ImportError:
        raise InputError("images need Pillow: pip install 'linear-scaling[images]'") from None
    return Image.open(BytesIO(content.tobytes()))


def middle(content: np.ndarray, size: int) -> np.ndarray:
    """uint8 [size x size x 3]: the middle of an image, row by row, red, green and blue of each pixel, as DeiT evaluates
    (Touvron et al. 2021, arXiv:2012.12877): the shorter side becomes 256/224 size pixels (bicubic), and size x size
    of it are cut out. Raises as open_image."""
    image, scaled = open_image(content).convert("RGB"), size * 256 // 224
    width, height = (scaled * side // min(image.size) for side in image.size)
    left, top = round((width - size) / 2), round((height - size) / 2)
    image = image.resize((width, height), BICUBIC).crop((left, top, left + size, top + size))
    return np.asarray(image).reshape(-1)
