"""A real folder of images, made of what scikit-learn ships."""

from pathlib import Path

import numpy as np


def write_folder(folder: Path, train: int = 100, val: int = 10) -> Path:
    """Crops of 48 x 64 pixels of scikit-learn's two photographs, of a class each, so many for either."""
    from PIL import Image
    from sklearn import datasets

    random = np.random.default_rng(0)
    for name in ("china.jpg", "flower.jpg"):
        photograph = Image.fromarray(datasets.load_sample_image(name))
        for split, n in (("train", train), ("val", val)):
            place = folder / split / name.removesuffix(".jpg")
            place.mkdir(parents=True)
            for i in range(n):
                left, top = random.integers(0, (photograph.width - 64, photograph.height - 48)).tolist()
                photograph.crop((left, top, left + 64, top + 48)).save(place / f"{i:03}.JPEG")
    return folder
