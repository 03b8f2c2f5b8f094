"""What all conventions share: one pass convention in every block, named differences, sums, and errors in one line."""

import dataclasses
import itertools
import math

import pytest

from arch.config import ARCHS
from arch.errors import InputError
from arch.presets import PAPER, preset, sizes_of
from flops import (
    by_module,
    conventions_of,
    forward_flops_per_token,
    hardware_by_module,
    hardware_flops_per_token,
    train_flops_per_token,
)
from flops.registry import ENTRIES
from tests.flops.test_against_torch import NOT_IN_EXACT, every_ablation

EVERY = [(arch, size) for arch in ARCHS for size in ("55k", "410m")]
every_preset = pytest.mark.parametrize("arch, size", EVERY)


def assert_one_pass_convention(cfg, context):
    """Every line is forward + backward, and its backward twice its forward: but for `executed`'s named lines, which
    have no forward pass (or are spent once a pass), no block may report a third or a half of what the others do."""
    for convention in conventions_of(cfg):
        forward, backward, train = (
            by_module(cfg, convention, context, part=part) for part in ("forward", "backward", "train")
        )
        assert set(forward) <= set(train)
        for name, flop in train.items():
            assert flop == pytest.approx(forward.get(name, 0.0) + backward.get(name, 0.0), rel=1e-12)
            exempt = convention == "executed" and name in NOT_IN_EXACT[cfg.arch] and name != "mixer.softmax.masked"
            if not exempt:
                assert flop == pytest.approx(3 * forward[name], rel=1e-12), (convention, name)


@every_preset
def test_every_block_has_the_same_pass_convention(arch, size):
    for context in (20, 77, 256):
        assert_one_pass_convention(preset(arch, size), context)


@every_ablation
def test_every_ablated_block_has_the_same_pass_convention(arch, changes):
    assert_one_pass_convention(
        preset(arch, "55k", **({"d_model": 60} if changes.get("expand_ratio") == 5 else {}) | changes), 45
    )


def test_a_block_that_reports_its_forward_pass_alone_is_caught(monkeypatch):
    """The defect of a known trainer: one mixer returns 2 x its products where the others return 6 x."""
    entry = ENTRIES["hgrn2"]
    once = {"mixer.inside", "mixer.state"}
    halved = dataclasses.replace(
        entry, excess=lambda cfg, n: {k: -2 * v for k, v in entry.core(cfg, n).items() if k in once}
    )
    monkeypatch.setitem(ENTRIES, "hgrn2", halved)
    with pytest.raises(AssertionError, match=r"executed.*mixer"):
        assert_one_pass_convention(preset("hgrn2", "55k"), 256)


@every_preset
def test_lines_sum_to_the_total_and_what_has_a_name_in_common_is_equal(arch, size):
    """So that the difference of two conventions is the lines of only one of them."""
    cfg = preset(arch, size)
    for context in (77, 256, 8192):
        lines = {name: by_module(cfg, name, context) for name in conventions_of(cfg)}
        for name, modules in lines.items():
            assert sum(modules.values()) == pytest.approx(train_flops_per_token(cfg, name, context), rel=1e-12)
            forward = sum(by_module(cfg, name, context, part="forward").values())
            assert forward_flops_per_token(cfg, name, context) == pytest.approx(forward, rel=1e-12)
        for first, other in itertools.combinations(lines.values(), 2):
            common = first.keys() & other.keys()
            assert {k: first[k] for k in common} == pytest.approx({k: other[k] for k in common}, rel=1e-12)


def test_a_pass_over_more_sequences_shares_what_is_spent_once():
    cfg = preset("cosformer2", "55k")
    single, ten = by_module(cfg, "executed"), by_module(cfg, "executed", sequences=10)
    assert ten["tpe.kernel"] == pytest.approx(single["tpe.kernel"] / 10) and single["mixer.q"] == ten["mixer.q"]


@pytest.mark.parametrize("arch", ARCHS)
def test_recomputation_is_reported_apart(arch):
    """Hardware FLOPs are model FLOPs and a forward pass of the layers, without the matrix that ends each."""
    cfg = preset(arch, "410m")
    last = "mixer.o" if arch in ("mamba1", "mamba2") else "ffn.down"
    for convention in ("executed", "exact"):
        model = train_flops_per_token(cfg, convention)
        assert hardware_flops_per_token(cfg, convention=convention) == pytest.approx(model, rel=1e-12)
        lines = hardware_by_module(cfg, "layers", convention=convention)
        again = {name.removesuffix(".again"): flop for name, flop in lines.items() if name.endswith(".again")}
        forward = by_module(cfg, convention, part="forward")
        assert set(forward) - set(again) == {name for name in forward if name.startswith("tpe")} | {"head", last}
        assert again == pytest.approx({name: forward[name] for name in again}, rel=1e-12)
        full = sum(lines.values())
        assert full == pytest.approx(model + sum(again.values()), rel=1e-12)
        assert 1.1 < full / model < 4 / 3


def test_6nd_charges_no_linear_model_with_a_quadratic_term():
    """Known trainers do. Only LLaMA's count may grow with the context beyond its chunk."""
    for arch in ARCHS:
        cfg = preset(arch, "410m")
        for convention in conventions_of(cfg):
            if arch == "hgrn2" and convention == "appendix":
                continue  # its 12dl a step is shared by more tokens
            near, far = (train_flops_per_token(cfg, convention, n) for n in (8192, 65536))
            grows = arch == "llama" and not convention.startswith("6nd")
            assert (far > 1.5 * near) if grows else far == pytest.approx(near, rel=1e-3)


def test_no_overflow_and_plain_floats():
    for arch in ARCHS:
        cfg = preset(arch, "7b", context_length=10**7)
        for convention in conventions_of(cfg):
            per_token = train_flops_per_token(cfg, convention)
            total = per_token * 3e11 * 1e6
            assert isinstance(per_token, float) and math.isfinite(total) and total > 2.0**80
            assert all(isinstance(flop, float) for flop in by_module(cfg, convention).values())


def test_bad_names_and_lengths_are_one_line():
    cfg = preset("tnl", "55k")
    cases = [
        (
            lambda: by_module(cfg, "exect"),
            "unknown convention 'exect' (valid: paper, appendix,",
        ),
        (lambda: by_module(cfg, "exact", 0), "context length must be a positive integer, not 0"),
        (lambda: by_module(cfg, "exact", math.inf), "context length must be a positive integer"),
        (lambda: by_module(cfg, "exact", True), "context length must be a positive integer"),
        (lambda: by_module(cfg, "exact", 10**400), "context length is too large to count: at most 1e+15"),
        (lambda: by_module(preset("tnl", "55k", d_ffn=10**90), "exact"), "is absurdly large"),
        (lambda: by_module(cfg, "exact", sequences=-1), "number of sequences must be a positive integer, not -1"),
        (lambda: by_module(cfg, "exact", part="backwards"), "; did you mean 'backward'?)"),
        (
            lambda: hardware_flops_per_token(cfg, "layer"),
            "'layer' (valid: none, layers; did you mean 'layers'?)",
        ),
        (lambda: hardware_flops_per_token(cfg, "layers", convention="6nd"), "does not say what hardware computes"),
        (lambda: by_module(preset("mamba1", "55k"), "appendix"), "'appendix' has no formula for mamba1: use executed"),
    ]
    for call, message in cases:
        with pytest.raises(InputError) as caught:
            call()
        assert message in str(caught.value) and "\n" not in str(caught.value)


def test_published_sizes_have_names_of_their_own():
    for arch in ARCHS:
        assert len(set(sizes_of(arch))) == len(sizes_of(arch))
    assert preset("llama", "7b").vocab_size == 100_280 and preset("llama", "llama-7b").vocab_size == 32_000
    assert set(PAPER) < set(sizes_of("llama"))
    with pytest.raises(InputError, match=r"unknown size 'llama-8b' \(did you mean 'llama-7b'"):
        preset("llama", "llama-8b")
    with pytest.raises(InputError, match="unknown size 'mamba-130m'"):
        preset("tnl", "mamba-130m")
