"""HGRN1's forms and expansions: their sizes against the HGRN papers' tables."""

import pytest
import torch

from arch.architectures.hgrn1.shape import inner_width, mixer_size, projections, state_size
from arch.config import field_choices
from arch.model.lm import build_model
from arch.ops.common import WITH_TRITON
from arch.presets import PAPER, preset
from flops import count_params
from tests.commands import refused

CHOICES = field_choices()

FORMS = CHOICES["hgrn1_state"]
D, LAYERS = 512, 6  # of HGRN's WikiText-103 models; the MLP is 2 d wide


def wikitext(form, **changes):
    shape = {"d_model": D, "n_layers": LAYERS, "n_heads": 4, "d_ffn": 2 * D, "vocab_size": 50_265}
    return preset("hgrn1", "70m", **shape, hgrn1_state=form, **changes)


@pytest.mark.parametrize(
    ("form", "squares", "state", "inner"),
    [("complex", 7, 2, 2), ("real", 7, 2, 2), ("real_2d", 8, 2, 2), ("narrow", 4, 1, 1)],
)
def test_widths(form, squares, state, inner):
    cfg = wikitext(form)
    assert mixer_size(cfg) == squares * D**2
    assert (state_size(cfg), inner_width(cfg)) == (state * D, inner * D)
    assert projections(cfg)["forget"] == (2 * D if form == "real_2d" else D)
    mixer = build_model(cfg.replace(d_model=16, n_heads=1, vocab_size=31)).decoder.layers[1].mixer
    theta = mixer.theta.numel() if form == "complex" else 0
    assert sum(p.numel() for p in mixer.parameters()) == squares * 16**2 + theta


# test_triton_models.py has the complex form's kernel; narrow's is that of the others
@pytest.mark.parametrize(("fast", "form"), [*(("chunk", form) for form in FORMS), ("triton", "narrow")])
def test_fast_forms_have_the_recurrences_gradients(form, fast):
    """Of a whole model, away from its start: the loss and the gradient of every parameter."""
    if fast == "triton" and not WITH_TRITON:
        pytest.skip("triton is not installed (pip install triton==3.7.1)")
    device = "cuda" if fast == "triton" and torch.cuda.is_available() else "cpu"
    model = build_model(preset("hgrn1", "14k", hgrn1_state=form, n_layers=2, init_std=0.1, chunk_size=8), seed=1)
    with torch.no_grad():
        for index, parameter in enumerate(model.parameters()):
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index))
    model = model.to(device) if fast == "triton" else model.double()
    rows = 1 if fast == "triton" else 2  # of several, the kernels are tested by themselves: the interpreter is slow
    ids = torch.randint(0, 257, (rows, 21), generator=torch.Generator().manual_seed(5)).to(device)
    results = []
    for kind in (fast, "naive"):
        loss = model(input_ids=ids, targets=ids.roll(-1, 1), backend=kind).loss
        results.append([loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))])
    close = 2e-5 if fast == "triton" else 1e-11
    for a, b in zip(*results, strict=True):
        assert b.abs().max() > 0 and (a - b).norm() <= close * b.norm()


def test_forms_differ_by_what_they_name():
    """Theta, and d^2 a layer with the bound of more gates, as HGRN2's table 1 has it: 47.82 M less 46.24 M."""
    sizes = {form: count_params(wikitext(form)).total for form in FORMS}
    assert sizes["complex"] - sizes["real"] == LAYERS * D
    assert sizes["real_2d"] - sizes["real"] == LAYERS * (D**2 + D)
    assert (sizes["real_2d"] - sizes["real"]) / 1e6 == pytest.approx(1.58, abs=0.01)


@pytest.mark.parametrize("kind", CHOICES["expansion"][1:])
@pytest.mark.parametrize("ratio", [1, 2, 4, 8])
@pytest.mark.parametrize("size", ["14k", "221k", "410m", "7b"])
def test_narrow_layers_have_the_parameters_of_the_others(kind, ratio, size):
    """To within half of eight channels of the mixer between layers; naive expansions of 4 and more leave no room."""
    given = {"hgrn1_state": "narrow", "expansion": kind, "expand_ratio": ratio}
    if kind == "naive" and ratio >= 4:
        with refused(f"expansion=naive with expand_ratio={ratio} leaves a layer no MLP"):
            preset("hgrn1", size, **given)
        assert preset("hgrn1", size, **given, d_ffn=24).d_ffn == 24
        return
    cfg, other = preset("hgrn1", size, **given), preset("llama", size)
    layer = count_params(cfg).non_embedding / cfg.n_layers - cfg.d_model  # without its lower bounds
    target = 4 * other.d_model**2 + 3 * other.d_model * other.d_ffn
    assert cfg.d_ffn % 8 == 0 and abs(layer - target) <= 3 * 4 * cfg.d_model
    assert preset("hgrn1", size, **given, d_ffn=1000).d_ffn == 1000


def test_narrow_without_an_expansion_is_as_wide_as_the_others():
    for size in PAPER:
        assert preset("hgrn1", size, hgrn1_state="narrow").d_ffn == preset("llama", size).d_ffn
    wider = preset("hgrn1", "25k", hgrn1_state="narrow", expansion="krp", d_model=64)
    assert wider.d_ffn == 8 * round((4 * 64**2 + 3 * 64 * 88 - 64**2 - 3 * 64) / (3 * 64) / 8)
    gateless = preset("hgrn1", "25k", hgrn1_state="narrow", output_gate=False)
    assert gateless.d_ffn == preset("hgrn1", "25k", hgrn1_state="narrow").d_ffn
