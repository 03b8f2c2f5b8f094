"""Mixtures: proportions at every prefix, each source's own order and epochs, the same at any world size."""

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arch.errors import InputError
from data.corpus import Corpus, open_corpus, prepare
from data.enough import require_tokens
from data.loader import Loader
from data.mixture import Assignment, Part, epochs_of, short_of
from data.settings import CorpusSettings, Weighted, whole_weights
from data.windows import part_of, window_starts


def weighted(*pairs: tuple[str, float], **more) -> CorpusSettings:
    return CorpusSettings(source=tuple(Weighted(source, weight) for source, weight in pairs), **more)


TWO_TO_ONE = weighted(("synthetic:0:300000", 2), ("synthetic:1:90000", 1), validation_fraction=0.1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return prepare(TWO_TO_ONE, tmp_path_factory.mktemp("mixture") / "corpus", shard_tokens=70_000)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=7))
def test_every_prefix_is_within_one_window_of_the_proportions(weights: list[int]) -> None:
    order = Assignment(weights)
    n = 2 * order.period + 3
    places = np.arange(n)
    source, nth = order.at(places)
    counts = np.array([np.cumsum(source == i) for i in range(len(weights))])
    shares = np.array(weights)[:, None] / sum(weights)
    assert np.abs(counts - shares * (places + 1)).max() < 1
    for i in range(len(weights)):
        assert np.array_equal(nth[source == i], np.arange(counts[i, -1]))  # each of a source's windows once, in order
    assert order.counts(n) == counts[:, -1].tolist() and order.counts(0) == [0] * len(weights)
    for i, wanted in enumerate(counts[:, -1].tolist()):
        room = order.places_with(i, wanted - 1) if wanted else 0
        assert order.counts(room)[i] <= max(0, wanted - 1) < max(1, order.counts(room + 1)[i])


def test_files_and_manifest_of_a_mixture(corpus: Corpus) -> None:
    manifest = corpus.manifest
    assert [(entry["name"], entry["weight"]) for entry in manifest["mixture"]] == [
        ("synthetic-0-300000", 2), ("synthetic-1-90000", 1)]  # fmt: skip
    for split, tokens in (("train", corpus.train), ("validation", corpus.validation)):
        parts = corpus.parts(split)
        assert sum(part.n_tokens for part in parts) == len(tokens) == manifest["splits"][split]["tokens"]
        assert parts[1].first == parts[0].n_tokens
        for key in ("tokens", "bytes", "documents"):
            of_sources = [entry["splits"][split][key] for entry in manifest["mixture"]]
            assert sum(of_sources) == manifest["splits"][split][key] and min(of_sources) > 0
        starts = corpus.document_starts(split)
        assert len(starts) == manifest["splits"][split]["documents"] + 1 and starts[-1] == len(tokens)
        assert np.all(np.asarray(tokens)[starts[1:] - 1] == 256)
    assert {"train.synthetic-0-300000_00003.bin", "train.synthetic-1-90000.idx"} <= set(manifest["files"])
    alone = prepare(CorpusSettings(source="synthetic:1:90000", validation_fraction=0.1), corpus.directory / "../alone")
    second = corpus.parts("train")[1]
    assert np.array_equal(np.asarray(alone.train), np.asarray(corpus.train)[second.first :])


def test_each_source_is_read_window_by_window_in_its_own_epochs(corpus: Corpus) -> None:
    parts, t = corpus.parts("train"), 64
    loader = Loader(corpus.train, t, 6, 3, 2.5, parts)
    starts = np.concatenate([loader.starts(step) for step in range(loader.steps_available)])
    source = part_of(parts, starts)
    assert np.abs(np.cumsum(source == 1) - (np.arange(len(source)) + 1) / 3).max() < 1
    for i, part in enumerate(parts):
        windows, n = (starts[source == i] - part.first) // t, part.n_windows(t)
        for epoch in range(len(windows) // n):
            assert np.array_equal(np.sort(windows[epoch * n : (epoch + 1) * n]), np.arange(n))
        assert windows.max() * t + part.first + t < part.first + part.n_tokens
        assert epochs_of(parts, len(starts) * t, t, 6)[part.name] == pytest.approx(len(windows) / n)
    assert max(epochs_of(parts, len(starts) * t, t, 6).values()) <= 2.5
    with pytest.raises(InputError, match="corpus too small"):
        loader.starts(loader.steps_available)


def test_a_share_of_the_text_is_read_again_and_again(corpus: Corpus) -> None:
    parts, t = corpus.parts("train"), 64
    whole = Loader(corpus.train, t, 60, 1, 1.0, parts)
    fifth = Loader(corpus.train, t, 60, 1, 5.0, parts, Fraction(1, 5))
    first, few = (
        np.concatenate([loader.starts(i) for i in range(loader.steps_available)]) for loader in (whole, fifth)
    )
    for i, part in enumerate(parts):
        of_whole, of_few = (starts[part_of(parts, starts) == i] for starts in (first, few))
        n = -(-part.n_windows(t) // 5)
        assert np.array_equal(of_few[:n], of_whole[:n])  # the first epoch is the beginning of the whole's
        assert set(of_few) <= set(of_whole[:n])
        assert not np.array_equal(of_few[n : 2 * n], of_few[:n])
    read = [epochs_of(parts, 300 * t, t, 60, share) for share in (Fraction(1), Fraction(1, 5))]
    assert read[1] == pytest.approx({name: 5 * n for name, n in read[0].items()}, rel=0.02)


def test_held_out_windows_are_in_the_mixtures_proportions(corpus: Corpus) -> None:
    parts = corpus.parts("validation")
    starts = window_starts(parts, 128, 30 * 128)
    assert np.bincount(part_of(parts, starts)).tolist() == [20, 10]
    most = window_starts(parts, 128, 10**9)
    counts = np.bincount(part_of(parts, most))
    assert abs(counts[0] - 2 * counts[1]) <= 2 and counts[1] <= parts[1].n_windows(128)
    assert np.bincount(part_of(parts, window_starts(parts, 128, 1))).tolist() == [1, 1]
    assert len(window_starts(parts, 128, len(most) * 128)) == len(most)
    tiny = [Part("a", 1.0, 0, 1000), Part("b", 1.0, 1000, 20)]
    with pytest.raises(InputError, match="validation split of source b has 20 tokens"):
        window_starts(tiny, 64, 640)


def test_held_out_tokens_are_shared_by_weight(tmp_path: Path) -> None:
    asked = weighted(("synthetic:0:300000", 3), ("synthetic:1:200000", 1), validation_fraction=None,
                     validation_tokens=40_000)  # fmt: skip
    made = prepare(asked, tmp_path / "corpus")
    counts = [entry["splits"]["validation"]["tokens"] for entry in made.manifest["mixture"]]
    assert 30_000 <= counts[0] < 34_000 and 10_000 <= counts[1] < 14_000 and not made.warnings
    few = prepare(
        weighted(("synthetic:0:300000", 3), ("synthetic:1:9000", 1), validation_fraction=1e-9), tmp_path / "c"
    )
    assert [entry["splits"]["validation"]["documents"] for entry in few.manifest["mixture"]] == [1, 1]
    with pytest.raises(InputError, match=r"25,000 are more than the .* of the whole text of source synthetic-1-9000"):
        prepare(weighted(("synthetic:0:300000", 3), ("synthetic:1:9000", 1), validation_fraction=None,
                         validation_tokens=100_000), tmp_path / "none")  # fmt: skip
    assert not (tmp_path / "none").exists()


def test_the_same_mixture_in_other_places_is_the_same_corpus(tmp_path: Path) -> None:
    def place(folder: str, english: str) -> CorpusSettings:
        (tmp_path / folder).mkdir()
        for name, key, n in ((english, "text", 60), ("zh", "content", 40)):
            lines = [json.dumps({key: f"{name[0]}{i} " * (50 + i)}) for i in range(n)]
            (tmp_path / folder / f"{name}.jsonl").write_text("\n".join(lines))
        sources = (Weighted(str(tmp_path / folder / f"{english}.jsonl"), 1.0),
                   Weighted(str(tmp_path / folder / "zh.jsonl"), 0.5, "content"))  # fmt: skip
        return CorpusSettings(source=sources, validation_fraction=0.2)

    here, there = place("here", "en"), place("there", "en")
    first = prepare(here, tmp_path / "corpus")
    assert prepare(there, tmp_path / "again").fingerprint == first.fingerprint and here.hash == there.hash
    moved = prepare(there, tmp_path / "corpus")
    assert moved.fingerprint == first.fingerprint and len(moved.manifest["same_text"]) == 1
    assert open_corpus(tmp_path / "corpus", verify=True).parts("train")[1].name == "zh"
    heavier = CorpusSettings(source=tuple(Weighted(w.source, 1.0, w.text_key) for w in here.source),
                             validation_fraction=0.2)  # fmt: skip
    assert heavier.hash != here.hash
    with pytest.raises(InputError, match=r"other settings: .*differ: mixture"):
        prepare(heavier, tmp_path / "corpus")


def test_a_source_that_another_one_holds_is_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        lines = [json.dumps({"text": f"the same {i} " * 50}) for i in range(30)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    for held_out in ({}, {"validation_fraction": None, "validation_tokens": 900}):
        both = replace(weighted((str(tmp_path / "a.jsonl"), 1), (str(tmp_path / "b.jsonl"), 1)), **held_out)
        with pytest.raises(
            InputError, match=r"nothing is left of .*b\.jsonl: an earlier source has all of its text \(30 documents\)"
        ):
            prepare(both, tmp_path / "corpus")


def test_the_source_that_is_short_is_named(corpus: Corpus) -> None:
    windows = corpus.parts("train")[1].n_windows(64)
    require_tokens(corpus, 3 * windows * 64, 1.0, 64, 3)
    with pytest.raises(InputError) as caught:
        require_tokens(corpus, 3 * (windows + 5) * 64, 1.0, 64, 3)
    message = str(caught.value)
    assert "source synthetic-1-90000" in message and "synthetic-0" not in message
    assert f"falls {5 * 64:,} tokens short" in message
    require_tokens(corpus, 3 * (windows + 5) * 64, float(message.rsplit(": ", 1)[1]), 64, 3)
    assert [
        shortage.missing for shortage in short_of(corpus.parts("train"), 3 * windows * 64, 1.0, 64, 3, Fraction(1, 2))
    ]


def test_bad_mixtures_are_one_line(tmp_path: Path) -> None:
    assert whole_weights([0.5, 0.25]) == [2, 1] and whole_weights([0.1, 0.2, 0.7]) == [1, 2, 7]
    for weights, shown in (([1.0, 0.0], "no positive number"), ([0.1234567, 0.8765433], "fewer digits")):
        with pytest.raises(InputError, match=shown):
            whole_weights(weights)
    same = Weighted("synthetic:0:9000", 1.0, name="a")
    for sources, shown in (
        ((same, "stdlib:"), "give each one or none"),
        ((same, same), "name 'a' .*another source has it"),
        ((same, replace(same, name="A")), "name 'A' .*one that differs in capitals alone"),
        ((Weighted("stdlib:", 1.0, name="a/b"),), "write letters, digits"),
        ((Weighted("stdlib:", -1.0),), "weight -1 is no positive number"),
    ):
        with pytest.raises(InputError, match=rf"^corpus\.source: .*{shown}"):
            CorpusSettings(source=sources)
    with pytest.raises(InputError, match=r"corpus.source: .*missing.jsonl' does not exist"):
        prepare(weighted(("synthetic:0:9000", 1), (str(tmp_path / "missing.jsonl"), 1)), tmp_path / "corpus")
    names = [source.name for source in weighted(("a/x.jsonl", 1), ("b/X.jsonl", 1), ("x-2.txt", 1)).mixture]
    assert names == ["x", "X-2", "x-2-2"] and not list(tmp_path.iterdir())
