"""A finished study whose files are damaged: what is wrong is noticed in one line and made again, or refused; no number
is another without a word."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from scaling.cli.main import main
from tests.commands import in_this_process

from .conftest import Tiny

N_CASES = 200
TIMED = ("inputs", "inputs_hash", "content_sha256")  # keys of fits.json that follow from the seconds of steps
UNREAD = ("train.log", "eval.log", ".lock")  # for people, or of no content


@pytest.fixture
def finished(tiny: Tiny) -> Path:
    """The folder of a study file and its finished study."""
    return tiny.folder


def flipped(content: bytes, random: Random) -> bytes:
    """With one bit changed."""
    changed = bytearray(content)
    changed[random.randrange(len(content))] ^= 1 << random.randrange(8)
    return bytes(changed)


def with_another_digit(content: bytes, random: Random) -> bytes:
    """With one digit changed: what looks right."""
    places = [match.start() for match in re.finditer(rb"[0-9]", content)]
    if not places:
        return flipped(content, random)
    place = random.choice(places)
    digit = random.choice([d for d in b"0123456789" if d != content[place]])
    return content[:place] + bytes([digit]) + content[place + 1 :]


def without_lines(content: bytes, random: Random) -> bytes:
    lines = content.splitlines(keepends=True)
    return b"".join(lines[: len(lines) // 2]) if len(lines) > 1 else content[: len(content) // 2]


KINDS: dict[str, Callable[[bytes, Random], bytes | None]] = {
    "a bit": flipped,
    "a digit": with_another_digit,
    "half of it": without_lines,
    "emptied": lambda content, random: b"",
    "another type": lambda content, random: b'["x"]\n',
    "not UTF-8": lambda content, random: b"\xff\xfe\x00" + content,
    "removed": lambda content, random: None,
}


def cases(home: Path) -> Iterator[tuple[str, str]]:
    """(file, kind of damage): kinds in turn over all files, seeded."""
    files = sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file())
    files = [name for name in files if Path(name).name not in UNREAD]
    random = Random(38)
    random.shuffle(files)
    first = ["status.json", "metrics.jsonl", "run.json", "validation.json", "fits.json", "curves.parquet"]
    files.sort(key=lambda name: Path(name).name not in first)  # what laws are made of comes first, and twice
    pairs = [(name, kind) for name in files for kind in random.sample(list(KINDS), 2)]
    yield from pairs


def numbers(home: Path) -> tuple[object, object]:
    """What a user reads: the laws, and where every run stands."""
    fits = json.loads((home / "results" / "fits.json").read_text())
    result = in_this_process(main, "status", home.parents[1] / "tiny.yaml", "--out", home.parent, "--json")
    rows = [(row["run_id"], row["state"], row["step"], row["loss"]) for row in json.loads(result.stdout)["runs"]]
    return {key: value for key, value in fits.items() if key not in TIMED}, rows


def check(finished: Path, folder: Path, name: str, kind: str, right: tuple[object, object]) -> str:
    """Damage one file of a copy and run the study again; how it ended: "refused", "healed" or "unread"."""
    shutil.copytree(finished, folder)
    home = folder / "out" / "tiny"
    path = home / name
    content = KINDS[kind](path.read_bytes(), Random(f"{name} {kind}"))
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    result = in_this_process(main, "run", folder / "tiny.yaml", "--out", folder / "out")
    output = f"{name}, {kind}: {result.returncode}\n{result.stdout}\n{result.stderr}"
    assert "Traceback" not in result.stdout + result.stderr, output
    if result.returncode != 0:
        messages = [line for line in result.stderr.splitlines() if line.startswith(("error: ", "failed: "))]
        assert (result.returncode == 2 and len(messages) == 1) or (result.returncode == 1 and len(messages) == 2), (
            output
        )
        assert any(part in result.stderr for part in (path.name, path.parent.name, "corpus")), output
        repaired = in_this_process(main, "run", folder / "tiny.yaml", "--out", folder / "out", "--repair")
        if repaired.returncode == 0:
            assert numbers(home) == right, f"repaired: {output}{repaired.stdout}{repaired.stderr}"
        return "refused"
    assert numbers(home) == right, output
    return "healed" if path.name in result.stdout + result.stderr else "unread"


def test_what_laws_are_made_of_is_noticed_where_it_is_damaged(finished: Path, tmp_path: Path) -> None:
    """The example of every kind of file, with the damage that looks right."""
    home = finished / "out" / "tiny"
    right = numbers(home)
    run = "runs/llama-14k-c64-s0"
    step = sorted(path.name for path in (home / run / "evals").iterdir())[-1]
    ended = {
        name: check(finished, tmp_path / str(i), name, kind, right)
        for i, (name, kind) in enumerate(
            [
                (f"{run}/metrics.jsonl", "a digit"),
                (f"{run}/status.json", "a digit"),
                (f"{run}/run.json", "a digit"),
                (f"{run}/evals/{step}/validation.json", "a digit"),
                ("results/fits.json", "a digit"),
                ("results/curves.parquet", "a bit"),
            ]
        )
    }
    assert ended == {
        f"{run}/metrics.jsonl": "refused",
        f"{run}/status.json": "refused",
        f"{run}/run.json": "refused",
        f"{run}/evals/{step}/validation.json": "healed",
        "results/fits.json": "healed",
        "results/curves.parquet": "healed",
    }


@pytest.mark.slow
def test_two_hundred_damaged_files(finished: Path, tmp_path: Path) -> None:
    home = finished / "out" / "tiny"
    right, ended = numbers(home), dict[str, int]()
    for name, kind in list(cases(home))[:N_CASES]:
        how = check(finished, tmp_path / "study", name, kind, right)
        ended[how] = ended.get(how, 0) + 1
        shutil.rmtree(tmp_path / "study")
    print(ended)
    assert sum(ended.values()) == N_CASES
