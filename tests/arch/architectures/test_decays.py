"""TNL's decays: the two rules of slopes, half-lives, which sizes have which rule, and the warning about drift."""

import math

import pytest
import torch

from arch.architectures.tnl.decays import drift, fastest_half_life
from arch.config import field_choices
from arch.model.lm import build_model
from arch.model.mixer import Stream
from arch.presets import PAPER, SIZES, TINY, preset
from arch.registry import warnings_of
from flops.shapes import free_shape

CHOICES = field_choices()

# ln 2 over the fastest slope of ALiBi for 4, 6, 8, 12, 20 and 32 heads, in tokens
PAPERS_HALF_LIVES = {"70m": 2.8, "160m": 1.4, "410m": 1.4, "1b": 1.0, "3b": 0.8, "7b": 0.8}


def test_the_papers_sizes_drift():
    """With its own slopes the fastest half-life falls from 2.8 tokens to 0.8 as heads are added."""
    assert tuple(PAPERS_HALF_LIVES) == tuple(PAPER)
    half_lives = {size: fastest_half_life(preset("tnl", size)) for size in PAPER}
    assert {size: round(life, 1) for size, life in half_lives.items()} == PAPERS_HALF_LIVES


def test_tiny_presets_are_fixed_and_the_papers_keep_the_papers():
    for size in SIZES:
        assert preset("tnl", size).options.decay_slopes == ("fixed" if size in TINY else "paper")
        assert preset("tnl", size, decay_slopes="paper").options.decay_slopes == "paper"
    lives = {round(fastest_half_life(preset("tnl", size, n_heads=heads)), 9) for size in TINY for heads in (1, 2, 4)}
    assert lives == {round(math.log(2) / 2**-0.5 / (1 + 1e-5), 9)}
    n_layers, d_model, _ = PAPER["70m"]  # free shapes: from the parameters of the paper's smallest model on
    slopes = [free_shape("tnl", d_model, n).options.decay_slopes for n in (n_layers, n_layers - 1)]
    assert slopes == ["paper", "fixed"]


def test_drift_is_one_sentence():
    sizes = [(size, preset("tnl", size)) for size in PAPER]
    others = [(size, preset("hgrn2", size)) for size in PAPER]
    assert warnings_of([*others, *sizes]) == [
        "tnl: decay slopes `paper` follow from the number of heads: the fastest half-life is 2.8 tokens at 70m and 0.8 "
        "at 7b, which confounds TNL's law; model.decay_slopes: fixed avoids it"
    ]


@pytest.mark.parametrize(
    "models",
    [
        [],
        [("7b", preset("hgrn2", "7b"))],
        [("70m", preset("tnl", "70m"))],
        [(size, preset("tnl", size)) for size in ("160m", "410m")],  # 6 and 8 heads: 2^-1 is the fastest of both
        [(size, preset("tnl", size, decay_slopes="fixed")) for size in PAPER],
        [(size, preset("tnl", size)) for size in TINY],
        [(size, preset("tnl", size, decay_slopes="paper", n_heads=2)) for size in TINY],
    ],
)
def test_no_drift_no_sentence(models):
    assert warnings_of(models) == []


def test_slopes_of_both_kinds_in_one_study_drift_too():
    warning = drift([("393k", preset("tnl", "393k")), ("70m", preset("tnl", "70m"))])
    assert warning is not None and "2.8 tokens at 70m and 1.0 at 393k" in warning


def test_decays_that_depend_on_the_data_start_at_those_that_do_not():
    """With W_a = 0 the model is the other one; the states fade by forget_gates; padding leaves them alone."""
    plain = build_model(preset("tnl", "14k", n_layers=3), seed=0)
    model = build_model(preset("tnl", "14k", n_layers=3, decay="dependent"), seed=0)
    ids = torch.arange(2 * 40).reshape(2, 40) % 250
    for layer in model.decoder.layers:
        layer.mixer.project["decay"].weight.data.zero_()
    model.load_state_dict(plain.state_dict() | {k: v for k, v in model.state_dict().items() if ".project.decay." in k})
    torch.testing.assert_close(model(input_ids=ids).logits, plain(input_ids=ids).logits, rtol=1e-4, atol=1e-5)
    x, stream = torch.randn(2, 5, 24), Stream(torch.arange(5), padding_mask=torch.tensor([[True] + [False] * 4] * 2))
    for layer in model.decoder.layers:
        layer.mixer.project["decay"].weight.data.normal_()
        gates = layer.mixer.forget_gates(x, stream)
        assert gates.shape == (2, 5, 2) and (gates[:, 0] == 1).all() and gates[:, 1:].std() > 0
    assert drift([(size, preset("tnl", size, decay="none")) for size in PAPER]) is None
