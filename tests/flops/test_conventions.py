"""What all conventions share: one pass convention in every block, named differences, sums, and errors in one line."""

import itertools
import math

import pytest

from arch.config import ARCHS
from arch.presets import preset
from flops import (
    by_module,
    conventions_of,
    hardware_by_module,
    hardware_flops_per_token,
    train_flops_per_token,
)
from tests.commands import refused
from tests.flops.test_against_torch import ABLATED, NOT_IN_EXACT, ablated

EVERY = [(arch, size) for arch in ARCHS for size in ("55k", "410m")]
every_preset = pytest.mark.parametrize("arch, size", EVERY)


@pytest.mark.parametrize(
    ("arch", "changes", "context"),
    [
        *((arch, {}, context) for arch in ARCHS for context in (20, 77, 256)),
        *((arch, changes, 45) for arch, changes in ABLATED),
    ],
    ids=str,
)
def test_every_block_has_the_same_pass_convention(arch, changes, context):
    """Every line is forward + backward, and its backward twice its forward: but for `executed`'s named lines, which
    have no forward pass (or are spent once a pass), no block may report a third or a half of what the others do."""
    cfg = ablated(arch, "55k", changes)
    for convention in conventions_of(cfg):
        forward, backward, train = (
            by_module(cfg, convention, context, part=part) for part in ("forward", "backward", "train")
        )
        assert set(forward) <= set(train)
        for name, flop in train.items():
            assert flop == pytest.approx(forward.get(name, 0.0) + backward.get(name, 0.0), rel=1e-12)
            exempt = convention == "executed" and name in NOT_IN_EXACT[arch] and name != "mixer.softmax.masked"
            if not exempt:
                assert flop == pytest.approx(3 * forward[name], rel=1e-12), (convention, name)


@every_preset
def test_lines_sum_to_the_total_and_what_has_a_name_in_common_is_equal(arch, size):
    """So that the difference of two conventions is the lines of only one of them."""
    cfg = preset(arch, size)
    for context in (77, 256, 8192):
        lines = {name: by_module(cfg, name, context) for name in conventions_of(cfg)}
        for name, modules in lines.items():
            assert isinstance(train_flops_per_token(cfg, name, context), float)
            assert sum(modules.values()) == pytest.approx(train_flops_per_token(cfg, name, context), rel=1e-12)
        for first, other in itertools.combinations(lines.values(), 2):
            common = first.keys() & other.keys()
            assert {k: first[k] for k in common} == pytest.approx({k: other[k] for k in common}, rel=1e-12)


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
        (lambda: by_module(cfg, "exact", part="backwards"), "; did you mean 'backward'?)"),
        (
            lambda: hardware_flops_per_token(cfg, "layer"),
            "'layer' (valid: none, layers; did you mean 'layers'?)",
        ),
        (lambda: hardware_flops_per_token(cfg, "layers", convention="6nd"), "does not say what hardware computes"),
        (lambda: by_module(preset("mamba1", "55k"), "appendix"), "'appendix' has no formula for mamba1: use executed"),
    ]
    for call, message in cases:
        with refused(message):
            call()
