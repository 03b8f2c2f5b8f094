"""Images drawn for training, by timm itself: the same bits whoever draws them, and what timm gives for a batch."""

import random

import numpy as np
import pytest
import torch

from arch.errors import InputError
from arch.soft_targets import parts_of
from data.augment import Drawn, seeded
from data.corpus import LabelledCorpus
from data.labelled_sources import make_set
from data.loader import Loader
from data.settings import Augmentation
from tests.data.image_folder import write_folder

timm = pytest.importorskip("timm.data", exc_type=(ImportError, RuntimeError))
DEIT = Augmentation("rand-m9-mstd0.5-inc1", 0.25, 0.8, 1.0, 0.125)
MIXED = Augmentation(None, 0.0, 0.8, 1.0, 0.125)
PLAIN = Augmentation(None, 0.0, 0.0, 0.0, 0.0)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = write_folder(tmp_path_factory.mktemp("images"))
    return make_set(f"images:{folder}:2:28", folder.parent / "set", lambda *_: None, lambda: None)


def loader(images, settings=DEIT, seed=0) -> Loader:
    corpus = LabelledCorpus(images)
    return Loader(corpus.train, images.facts.row, 7, seed, epochs=3, draw=corpus.drawn(settings, seed))


def test_a_step_is_the_same_whoever_draws_it(images):
    """After other steps, first, in parts: as a run that was continued, and as other numbers of processes."""
    whole, other = loader(images), loader(images)
    steps = [whole.batch(step) for step in range(4)]
    state = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert (other.batch(3) == steps[3]).all()
    assert (np.concatenate([other.batch(2, slice(a, b)) for a, b in ((0, 3), (3, 4), (4, 7))]) == steps[2]).all()
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == state
    assert not (loader(images, seed=1).batch(3)[:, :-1] == steps[3][:, :-1]).all()
    assert steps[0].min() >= 0 and max(step[:, :-1].max() for step in steps) <= 255


def test_an_epoch_draws_each_image_once_and_the_next_one_anew(images):
    plain = loader(images, PLAIN)
    classes = np.concatenate([plain.batch(step)[:, -1] for step in range(198 // 7)])
    assert set(classes.tolist()) == {0, 1}
    starts = plain.starts(0)
    draw = Drawn(images, PLAIN, 0)
    assert not (draw(starts, 0)[:, :-1] == draw(starts, 1)[:, :-1]).all(1).any()


def test_pairs_are_mixed_as_timm_mixes_a_batch(images):
    """timm's Mixup on the step's images, ordered so that its pairs are ours."""
    for step in range(4):
        starts = np.arange(8) * 11 * images.facts.row
        mixed, alone = (Drawn(images, settings, 0)(starts, step) for settings in (MIXED, PLAIN))
        order = [0, 2, 4, 6, 7, 5, 3, 1]
        pixels = torch.from_numpy(alone[order, :-1]).view(8, 28, 28, 3).permute(0, 3, 1, 2).float()
        mix = timm.Mixup(MIXED.mixup, MIXED.cutmix, label_smoothing=MIXED.smoothing, num_classes=2)
        labels = parts_of(torch.from_numpy(alone[order, -1]))[0]
        with seeded("mixture", 0, step):
            expected, targets = mix(pixels, labels)
        expected = expected.permute(0, 2, 3, 1).flatten(1).numpy()
        assert np.abs(mixed[order, :-1] - expected).max() <= 1  # rounded once there, twice here
        first, second, weight, smoothing = (np.asarray(part)[:, None] for part in parts_of(mixed[order, -1]))
        ours = (1 - smoothing) * ((1 - weight) * (first == [0, 1]) + weight * (second == [0, 1])) + smoothing / 2
        assert np.abs(ours - targets.numpy()).max() < 1e-4


def test_what_cannot_be_drawn_is_one_line(images, tmp_path):
    with pytest.raises(InputError, match=r"corpus\.augment\.policy: 'nonsense'"):
        Drawn(images, Augmentation("nonsense", 0, 0, 0, 0), 0)
