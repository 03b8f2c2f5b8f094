"""What is compared with what, where a grid has axes."""

from analysis.figures.palette import arch_colors, dashes, name_of
from analysis.labels import arch_of, families, group_of, parts, point_of, without
from arch.config import ARCHS
from arch.registry import register_pattern
from tests.registries import as_registered


def test_a_group_is_an_architecture_at_a_point():
    group = group_of("llama", "lr=0.001, norm=rms")
    assert (arch_of(group), point_of(group), parts(point_of(group))) == (
        "llama",
        "lr=0.001, norm=rms",
        {"lr": "0.001", "norm": "rms"},
    )
    assert group_of("llama", without("lr=0.001, norm=rms", {"lr"})) == "llama, norm=rms"
    assert group_of("llama", "") == "llama" and name_of("llama, norm=rms") == "LLaMA, norm=rms"
    groups = ["llama, norm=rms", "llama, norm=layer", "tnl, norm=layer"]
    colors = arch_colors(groups)
    assert colors[groups[0]] == colors[groups[1]] != colors[groups[2]]
    assert list(dashes(groups).values()) == ["solid", "dash", "dash"] and dashes(["llama"]) == {"llama": "solid"}


def test_no_two_groups_look_alike():
    """Six dashes; with more points shades of the colour beside them."""
    groups = [f"{arch}, context_length={2**n}" for arch in ("llama", "tnl", "spare") for n in range(20)]
    looks = list(zip(arch_colors(groups).values(), dashes(groups).values(), strict=True))
    assert len(set(looks)) == len(groups) and all(len(color) == 7 for color, _ in looks)
    assert len({color for color, _ in looks[:6]}) == 1 and len({color for color, _ in looks[:9]}) == 2


def test_architectures_without_a_colour_look_unlike_each_other_and_those_of_the_package():
    assert len(set(arch_colors(ARCHS).values())) == len(ARCHS)
    groups = ["llama", "hgrn2", *(f"spare{n}" for n in range(8))]
    assert len(set(arch_colors(groups).values())) == len(groups)


def test_a_hybrid_has_one_colour_whichever_others_are_drawn():
    with as_registered():
        for name in ("one-to-one", "three-to-one"):
            register_pattern(name, ["hgrn2", "softmax"] if name == "one-to-one" else ["hgrn2"] * 3 + ["softmax"])
        every = arch_colors(["hgrn2", "one-to-one", "three-to-one"])
        assert len(set(every.values())) == 3
        assert arch_colors(["three-to-one", "hgrn2"]) == {name: every[name] for name in ("three-to-one", "hgrn2")}


def test_architectures_are_compared_at_equal_points():
    assert families(["llama", "tnl"], {}) == [("", ["llama", "tnl"])]
    groups = [f"{arch}, context_length={c}" for arch in ("llama", "tnl") for c in (1, 2)]
    contexts = {group: group[-1] for group in groups}
    at = [(f"context_length={c}", [f"llama, context_length={c}", f"tnl, context_length={c}"]) for c in (1, 2)]
    assert families(groups, contexts) == at  # losses over different contexts are not compared
    assert families(groups, dict.fromkeys(groups, "256")) == [*at, ("llama", groups[:2]), ("tnl", groups[2:])]
    assert families(groups[:2], contexts) == [("context_length=1", groups[:1]), ("context_length=2", groups[1:2])]


def test_what_a_field_means_nothing_to_is_compared_at_every_value():
    groups = ["llama", "tnl, decay=none", "tnl, decay=data"]
    assert families(groups, dict.fromkeys(groups, "1")) == [
        ("decay=none", ["llama", "tnl, decay=none"]),
        ("decay=data", ["llama", "tnl, decay=data"]),
        ("tnl", ["tnl, decay=none", "tnl, decay=data"]),
    ]
