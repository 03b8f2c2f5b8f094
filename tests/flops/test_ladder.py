"""Ladders: the same size for all architectures, in shapes that the kernels take, and no closer ones on the grid."""

import math
from itertools import pairwise

import pytest

from arch.config import ARCHS
from arch.errors import InputError
from arch.kernel_config import WIDEST_HEAD
from arch.model.mixer import mixer_of
from arch.registry import ARCHITECTURES, register
from flops import Entry, count_params, train_flops_per_token
from flops import register as register_costs
from flops.entry import square
from flops.ladder import Ladder, aspect_at, common_shape, ffn_step, rung
from flops.registry import ENTRIES, entry_of
from tests.commands import refused

DENSE = Ladder(1e6, 1e10, 121)
STUDY = {"vocab_size": 257, "context_length": 2048}
WITH_FFN = [arch for arch in ARCHS if entry_of(arch).has_mlp]


def test_every_architecture_has_every_target_from_1m_to_10b():
    """Within 1%, without an FFN 3% below 10M; depth, width and heads in common; shapes that the kernels take."""
    for target in DENSE.targets[::3]:
        shapes = set()
        for arch in ARCHS:
            match = rung(arch, DENSE, target, STUDY)
            cfg, limit = match.cfg, 0.01 if target >= 1e7 or arch in WITH_FFN else 0.03
            assert match.value == count_params(cfg).non_embedding and abs(match.value / target - 1) <= limit
            assert cfg.n_layers >= 2 and cfg.n_heads >= 2 and cfg.d_model % 16 == 0
            if arch in WITH_FFN:
                shapes.add((cfg.n_layers, cfg.d_model, cfg.n_heads))
                assert cfg.d_model < 256 or cfg.d_model % 64 == 0
                least = 0.8 if arch == "retnet" else 0.9  # whose mixer has twice the others' matrices
                most = 4 if mixer_of(arch).mlp_gate else 6  # an MLP of two matrices, not three
                assert cfg.d_ffn % ffn_step(cfg.d_model) == 0 and least < cfg.d_ffn / cfg.d_model < most
                assert cfg.head_dim == DENSE.heads == 32 and 2 * cfg.head_dim <= WIDEST_HEAD  # cosFormer2 doubles keys
            else:
                assert cfg.d_model < 1024 or cfg.d_model % 64 == 0
                assert 1 / 4 < cfg.d_model / cfg.n_layers / (aspect_at(DENSE, target) / 2) < 4
            if arch == "mamba2":
                assert (
                    2 * cfg.d_model // cfg.n_heads == (32 if cfg.d_model % 32 else 64)
                    and cfg.options.ssm_state == 128 <= WIDEST_HEAD
                )
            assert arch != "mamba1" or cfg.options.ssm_state == 16
            assert arch != "tnl" or cfg.options.decay_slopes == "fixed"
        assert len(shapes) == 1


def test_targets_and_names():
    ladder = Ladder(1e6, 60e6, 6)
    assert ladder.names == ("n1m", "n2.27m", "n5.14m", "n11.7m", "n26.5m", "n60m")
    steps = [math.log(b / a) for a, b in pairwise(ladder.targets)]
    assert max(steps) - min(steps) < 1e-9 and (ladder.targets[0], ladder.targets[-1]) == (1e6, 60e6)
    assert Ladder(4e5, 1.5e9, 2).names == ("n400k", "n1.5b")
    heads = {start: Ladder(start, 1e11, 5).heads for start in (1e5, 1e6, 1e7, 1e8, 1e9)}
    assert heads == {1e5: 16, 1e6: 32, 1e7: 64, 1e8: 128, 1e9: 128} and Ladder(1e6, 1e7, 2, head_dim=48).heads == 48


def test_the_common_shape_is_the_best_on_the_grid():
    """By a search of all widths and depths, of what the rule states; near the shapes that were published."""
    for target in (1e5, *DENSE.targets[::8]):
        aspect = 64 * (target / 1e8) ** 0.15
        assert aspect_at(DENSE, target) == pytest.approx(aspect)
        widths = [width for width in range(32, 6000, 32) if width >= 64 and (width < 256 or width % 64 == 0)]
        cost, shape = min(
            (3 * abs(math.log(12 * n * width**2 / target)) + abs(math.log(width / n / aspect)), (n, width))
            for width in widths
            for n in range(2, 100)
        )
        best = common_shape(DENSE, target)
        assert (best["n_layers"], best["d_model"], best["n_heads"]) == (*shape, shape[1] // 32), cost
    # GPT-3, table 2.1, and Chinchilla, table A9: layers, width, parameters without embeddings as 12 l d^2
    for layers, width in ((12, 768), (24, 2048), (32, 4096), (40, 5120), (8, 512), (14, 896)):
        assert 0.6 < aspect_at(DENSE, 12 * layers * width**2) / (width / layers) < 1.7
    assert common_shape(Ladder(1e6, 1e9, 5, aspect=16.0), 1e8)["n_layers"] > 2 * common_shape(DENSE, 1e8)["n_layers"]


def test_flops_are_matched_to_llamas():
    for context in (256, 2048):
        study = STUDY | {"context_length": context}
        ladder = Ladder(3e6, 3e8, 4, match="flops")
        for target in ladder.targets:
            same = rung("llama", DENSE, target, study | {}).cfg
            goal = train_flops_per_token(rung("llama", ladder, target, study).cfg, "exact")
            assert goal == pytest.approx(train_flops_per_token(same, "exact"), rel=0.05)  # another head dimension
            for arch in ARCHS:
                cfg = rung(arch, ladder, target, study).cfg
                limit = 0.01 if target >= 1e7 or arch in WITH_FFN else 0.03
                assert train_flops_per_token(cfg, "exact") == pytest.approx(goal, rel=limit)
                assert cfg.context_length == context


def test_what_the_study_says_of_the_model_is_matched_with_it():
    plain, target = Ladder(1e6, 1e8, 5), 1e7
    for arch, changes in (
        ("llama", {"norm": "layer"}),
        ("hgrn1", {"hgrn1_state": "narrow"}),
        ("hgrn2", {"output_gate": False}),
        ("tnl", {"decay_slopes": "paper", "gate_rank": 4}),
        ("mamba2", {"ssm_state": 16}),
    ):
        match = rung(arch, plain, target, STUDY | changes)
        assert abs(match.deviation) <= 0.01 and changes.items() <= match.cfg.to_dict().items()
        assert match.cfg.d_ffn != rung(arch, plain, target, STUDY).cfg.d_ffn or arch in ("llama", "mamba2")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((1e6, 1e6, 3), "from: 1M is not below to: 1M"),
        ((1.0, 1e6, 3), "from: 1 parameters: write 1000 to 1e+13"),
        ((1e6, 1e7, 1), "count: 1 size: write 2 to 1000"),
        ((1e6, 1.001e6, 20), "count: 20 sizes lie so close"),
        ((1e6, 1e7, 3, "loss"), "match: must be params or flops, not 'loss'"),
        ((1e6, 1e7, 3, "params", 0.5), "aspect: 0.5 is no width over layers"),
        ((1e6, 1e7, 3, "params", None, 24), "head_dim: 24 is no multiple of 16 up to 128"),
        ((1e6, 1e7, 3, "params", None, 256), "head_dim: 256 is no multiple"),
    ],
)
def test_ladders_that_cannot_be(fields, message):
    with refused(message):
        Ladder(*fields)


def test_unreachable_targets_name_the_nearest():
    with pytest.raises(
        InputError, match=r"^no size within 3% of 124,000 parameters .* the nearest have 119,456 and 129,408"
    ):
        rung("mamba1", Ladder(2e4, 1e6, 5), 1.24e5, STUDY)
    with pytest.raises(
        InputError, match=r"no size within 3% of 2,000 parameters on the ladder: the nearest has 2,\d+: "
    ):
        rung("llama", Ladder(2e3, 1e6, 5), 2e3, STUDY)
    with pytest.raises(InputError, match=r"FLOP per token \(exact\) at context_length 8,192 on the ladder"):
        rung("tnl", Ladder(1e6, 1e10, 5, match="flops"), 1e6, {"context_length": 8192})


@pytest.mark.parametrize("start", [4e3, 6e3, 2e4, 1e5])
def test_tiny_sizes_of_cpus(start):
    """Of 4,000 parameters and more, within 3%; the FFN's width in steps of 8 wherever one of these is close enough."""
    ladder = Ladder(start, 64 * start, 13)
    assert ladder.heads == (8 if start < 15e3 else 16)
    for target in ladder.targets:
        shapes = set()
        for arch in ("llama", "tnl", "hgrn2", "cosformer2"):
            match = rung(arch, ladder, target, STUDY)
            cfg = match.cfg
            assert abs(match.deviation) <= 0.03 and cfg.n_heads >= 2 and cfg.head_dim == ladder.heads
            shapes.add((cfg.n_layers, cfg.d_model, cfg.n_heads))
            if cfg.d_ffn % 8:
                near = [8 * (cfg.d_ffn // 8 + up) for up in (0, 1)]
                off = [count_params(cfg.replace(d_ffn=g)).non_embedding / target - 1 for g in near if g]
                assert cfg.d_model < 64 and min(map(abs, off)) > 0.03
        assert len(shapes) == 1


def test_architectures_of_plugins():
    """One of 5 d^2 a mixer is matched as the others; one whose mixer alone is larger than the target names the
    nearest."""
    before = dict(ARCHITECTURES), dict(ENTRIES)
    try:
        for name, letters in (("fifth", "abcde"), ("heavy", "abcdefghijklmnop")):
            register(name, mixer=lambda: None)
            register_costs(name, Entry(lambda cfg, letters=letters: square(cfg, *letters), lambda cfg, n: {}))
        for target in (1e6, 1e8):
            assert abs(rung("fifth", DENSE, target, STUDY).deviation) <= 0.01
        with pytest.raises(InputError, match=r"no size within 1% of 10,000,000 parameters .* the nearest has 1\d,"):
            rung("heavy", DENSE, 1e7, STUDY)
    finally:
        for table, kept in zip((ARCHITECTURES, ENTRIES), before, strict=True):
            table.clear()
            table.update(kept)
