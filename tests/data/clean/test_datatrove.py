"""datatrove's stages on a small sample here; tests/jobs has them as arrays on a cluster."""

import gzip
import json
import struct
import sys

import numpy as np
import pytest

from arch.errors import InputError
from data.clean.filtering import NEAR, Filtering, claim
from data.corpus import prepare
from data.settings import CorpusSettings
from tests.data.clean.sample import KINDS, sample

pytest.importorskip("datatrove", reason="needs the extra corpus")
stages = pytest.importorskip("data.clean.datatrove_stages")


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory) -> Filtering:
    folder = tmp_path_factory.mktemp("cleaned")
    filtering = Filtering(sample(folder, 2), folder / "out", tasks=2)
    assert claim(filtering) is None
    stages.run_here(filtering, 1, lambda line: None)
    return filtering


def rows(folder) -> list[dict]:
    return [
        json.loads(line) for path in sorted(folder.glob("*.gz")) for line in gzip.open(path, "rt", encoding="utf-8")
    ]


def test_each_rule_drops_what_it_should(cleaned):
    record = claim(cleaned)
    assert record is not None
    kept = [row["text"] for row in rows(cleaned.text)]
    kinds = [text.split()[0] for text in kept]
    counts = {kind: kinds.count(kind) for kind in KINDS}
    assert counts["good"] + counts["copy"] == 20  # which of a pair stays is datatrove's choice
    assert (counts["好的"], counts["repeats"], counts["short"]) == (10, 0, 0)
    steps = {step["step"]: step for step in record["steps"]}
    assert {name: step["dropped"] for name, step in steps.items()} == {"repetition": 5, "quality": 4, NEAR: 6}
    assert record["counts"]["documents"] == 45 and record["counts"]["kept"] == len(kept) == 30
    assert record["counts"]["invalid_records"] == 2
    assert steps["quality"]["reasons"] == {"gopher_short_doc": 4}
    for name, step in steps.items():
        dropped = {row["id"]: row["text"] for row in rows(cleaned.dropped(name))}
        assert len(dropped) == step["dropped"]
        assert all(dropped[example["document"]].startswith(example["text"][:5]) for example in step["examples"])
    assert not cleaned.work.exists()


def test_a_corpus_of_the_result_tells_it_too(cleaned, tmp_path):
    corpus = prepare(CorpusSettings(source=str(cleaned.text), clean=("near_duplicates",)), tmp_path / "corpus")
    shown = [(entry["step"], entry["dropped"]) for entry in corpus.manifest["cleaning"]]
    assert shown == [("repetition", 5), ("quality", 4), (NEAR, 6), ("near_duplicates", 0)]
    part = next(iter(cleaned.text.iterdir()))
    content = part.read_bytes()
    part.write_bytes(content[:-1])
    with pytest.raises(InputError, match="is not what"):
        prepare(CorpusSettings(source=str(cleaned.text)), tmp_path / "other")
    part.write_bytes(content)


def test_what_stopped_goes_on(cleaned, tmp_path, monkeypatch):
    """A task that fails leaves nothing that a study would take for the text; the next start does what is missing."""
    filtering = Filtering(cleaned.sources, tmp_path / "out", tasks=2)
    claim(filtering)
    cluster = stages.MinhashDedupCluster.run
    with monkeypatch.context() as patch:
        patch.setattr(stages.MinhashDedupCluster, "run", lambda *args: (_ for _ in ()).throw(OSError("disk is gone")))
        with pytest.raises(OSError, match="disk is gone"):
            stages.run_here(filtering, 1, lambda line: None)
    assert claim(filtering) is None and not filtering.text.exists()
    assert stages.MinhashDedupCluster.run is cluster
    done = (filtering.logs("rules") / "stats" / "00000.json").stat().st_mtime_ns
    stages.run_here(filtering, 1, lambda line: None)
    assert (filtering.logs("rules") / "stats" / "00000.json").stat().st_mtime_ns == done
    assert rows(filtering.text) == rows(cleaned.text)
    assert (claim(filtering) or {})["steps"] == (claim(cleaned) or {})["steps"]


def language_model(words: dict[str, list[str]]) -> bytes:
    """A fastText model (version 12 of its format) that knows these words of each language: a dimension a language."""
    dim, entries = len(words), [(word, 0) for known in words.values() for word in known]
    entries += [(f"__label__{label}", 1) for label in words]
    args = struct.pack("<12id", dim, 5, 1, 1, 5, 1, 3, 3, 0, 0, 0, 100, 1e-4)  # softmax, supervised, no subwords
    counts = struct.pack("<3i2q", len(entries), len(entries) - dim, dim, len(entries), -1)
    names = b"".join(word.encode() + b"\0" + struct.pack("<qb", 1, kind) for word, kind in entries)
    unit = np.eye(dim, dtype="<f4")
    rows = np.repeat(unit, [len(known) for known in words.values()], axis=0)
    matrices = [b"\0" + struct.pack("<2q", *matrix.shape) + matrix.tobytes() for matrix in (rows, 5 * unit)]
    return struct.pack("<2i", 793712314, 12) + args + counts + names + b"".join(matrices)


def test_languages_are_classified_by_a_local_model(tmp_path):
    pytest.importorskip("fasttext")
    known = {"en": ["the", "of", "and", "to", "in", "is", "that"], "zh": list("的一是不了在人有我他")}
    (tmp_path / "lid.bin").write_bytes(language_model(known))
    texts = ["the of and it was in that is for to", "的 一 是 不 了 在 人 有 我 他", "for it was and the of that"]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    filtering = Filtering(
        (str(tmp_path / "in.jsonl"),), tmp_path / "out", rules=("language",), languages=("en",), near=False,
        model=tmp_path / "lid.bin",
    )  # fmt: skip
    claim(filtering)
    stages.run_here(filtering, 1, lambda line: None)
    assert [row["text"] for row in rows(filtering.text)] == [texts[0], texts[2]]
    (step,) = (claim(filtering) or {})["steps"]
    assert (step["step"], step["documents"], step["dropped"]) == ("language", 3, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rules": ("qualty",)}, "did you mean 'quality'"),
        ({"rules": ("language",)}, "needs --language"),
        ({"languages": ("en",)}, "needs --language"),
        ({"rules": (), "near": False}, "nothing is to be dropped"),
        ({"tasks": 0}, "--tasks: 0"),
    ],
)
def test_wrong_settings_are_one_line(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        Filtering(("x",), tmp_path, **changes)


def test_rules_that_drop_everything_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("no stop words here\n" * 10)
    with pytest.raises(InputError, match="SOURCE: no document is left by the rules"):
        stages.run_here(Filtering((str(tmp_path / "a.txt"),), tmp_path / "cleaned"), 1, lambda line: None)


def test_a_folder_of_something_else_is_left_alone(cleaned, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="holds other files"):
        claim(Filtering(("x",), tmp_path))
    with pytest.raises(InputError, match="cleaned otherwise"):
        claim(Filtering(cleaned.sources, cleaned.directory, tasks=3))
    assert sys.stderr is not None and [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
