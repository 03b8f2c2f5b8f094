"""A folder of images as a labelled set: crops of scikit-learn's two photographs, as JPEG files."""

from pathlib import Path

import numpy as np
import pytest

from arch.errors import InputError
from data.images import ImageFolder
from data.labelled import SPLITS, LabelledSet
from data.labelled_sources import check_set, facts_of, make_set
from data.pixels import middle
from tests.data.image_folder import write_folder

Image = pytest.importorskip("PIL.Image")
datasets = pytest.importorskip("sklearn.datasets")


def make(source: str, directory: Path) -> LabelledSet:
    return make_set(source, directory, lambda *_: None, lambda: None)


def test_a_folder_is_read_as_the_middle_of_each_image(tmp_path):
    folder = write_folder(tmp_path / "photo graphs 数")
    (folder / "train" / "china" / "notes.txt").write_text("no image")
    labelled = make(f"images:{folder}:2:28", tmp_path / "set")
    assert facts_of(f"images:{folder}:2:28") == labelled.facts
    assert [len(labelled.split(split).labels) for split in SPLITS] == [198, 2, 20]
    assert labelled.split("validation").labels.tolist() == [0, 1]
    row = labelled.split("test").rows(np.array([13]), labelled.facts)[0]
    with Image.open(folder / "val" / "flower" / "003.JPEG") as image:
        scaled = np.asarray(image.resize((42, 32), Image.Resampling.BICUBIC))
    assert row[-1] == 1 and row[:-1].reshape(28, 28, 3).tolist() == scaled[2:30, 7:35].tolist()


def test_the_middle_is_that_of_torchvision(tmp_path):
    """DeiT's transform for evaluation."""
    transforms = pytest.importorskip("torchvision.transforms", exc_type=(ImportError, RuntimeError))
    for width, height in ((640, 427), (427, 640), (500, 333), (64, 64), (101, 99)):
        image = Image.fromarray(datasets.load_sample_image("china.jpg")).resize((width, height))
        image.save(tmp_path / "image.png")
        expected = transforms.Compose([transforms.Resize(256, 3), transforms.CenterCrop(224)])(image)
        assert (middle(np.fromfile(tmp_path / "image.png", np.uint8), 224) == np.asarray(expected).ravel()).all()


def test_images_of_other_kinds_have_three_colours(tmp_path):
    for mode, suffix in (("L", "png"), ("RGBA", "png"), ("CMYK", "jpeg"), ("P", "png")):
        Image.new(mode, (30, 20), 0).save(tmp_path / f"image.{suffix}")
        assert middle(np.fromfile(tmp_path / f"image.{suffix}", np.uint8), 14).shape == (14 * 14 * 3,)


def test_what_is_not_there_is_named_with_its_layout_and_size(tmp_path):
    folder = write_folder(tmp_path / "images", train=1, val=1)
    for text, words in (
        (f"{tmp_path}/absent:1000:224", "train is not there"),
        (":2:28", "no folder: train is not there"),
        (f"{folder}", "does not end in :CLASSES:SIZE"),
        (f"{folder}:2:-28", "does not end in :CLASSES:SIZE"),
        (f"{folder}:3:28", "train and val have folders of 2 and 2 classes, not the same 3"),
    ):
        with pytest.raises(InputError, match=rf"^corpus\.source: [^\n]*{words}[^\n]*1,281,167[^\n]*144 GB[^\n]*$"):
            check_set(f"images:{text}")
    with pytest.raises(InputError, match="too few images for a validation split"):
        make(f"images:{folder}:2:28", tmp_path / "set")


def test_a_file_that_is_no_image_is_named(tmp_path):
    folder = write_folder(tmp_path / "images", val=1)
    wrong = folder / "val" / "flower" / "000.JPEG"
    whole = wrong.read_bytes()
    wrong.write_bytes(b"no image")
    with pytest.raises(InputError, match=r"^corpus\.source: [^\n]*flower/000\.JPEG: cannot be read[^\n]*$"):
        make(f"images:{folder}:2:28", tmp_path / "set")
    wrong.write_bytes(whole[:-50])  # its header is whole
    test = make(f"images:{folder}:2:28", tmp_path / "set").split("test")
    with pytest.raises(InputError, match="image 1 of a split: cannot be read"):
        test.rows(np.array([1]), ImageFolder().facts_of(f"{folder}:2:28"))
