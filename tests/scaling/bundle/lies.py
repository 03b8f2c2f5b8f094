"""Bundles that name code or lie: each is made from an honest one's members, with checksums that fit."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import re
import tarfile
from collections.abc import Callable
from pathlib import Path

from data.files import json_bytes, unsealed
from tests.measured import EVIL, MARK

from .small import RUNS, Member, read_tar, write_tar

RUN = f"runs/{RUNS[0]}"
CHECKPOINT = f"{RUN}/checkpoints/00000030"

GIB = 1 << 30
Lie = Callable[[list[Member], Path], object]


def member(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, **fields: object) -> Member:
    made = tarfile.TarInfo(name)
    made.type, made.size = kind, len(content)
    for key, value in fields.items():
        setattr(made, key, value)
    return made, content


def sealed(members: list[Member], **changes: object) -> list[Member]:
    """With an index that says what the members are; `changes` of its keys."""
    index = json.loads(members[0][1])
    index["files"] = {
        member.name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for member, content in members[1:]
    }
    return [member("index.json", json.dumps(index | changes).encode()), *members[1:]]


def replaced(name: str, content: bytes | Callable[[bytes], bytes], **changes: object) -> Lie:
    """A file of the bundle is another, or is there besides."""

    def lie(members: list[Member], path: Path) -> object:
        before = next((old for info, old in members if info.name == name), b"")
        new = content if isinstance(content, bytes) else content(before)
        kept = [entry for entry in members if entry[0].name != name]
        return write_tar(path, sealed([*kept, member(name, new)], **changes))

    return lie


def study(old: str, new: str) -> Lie:
    return replaced("study/tiny.yaml", lambda text: text.decode().replace(old, new, 1).encode())


def of_json(name: str, change: Callable[[dict], object]) -> Lie:
    """A JSON file of the bundle is changed in place, with a digest that fits."""

    def changed(content: bytes) -> bytes:
        value = unsealed(content)
        change(value)
        return json_bytes(value)

    return replaced(name, changed)


def index(**changes: object) -> Lie:
    return lambda members, path: write_tar(path, sealed(members, **changes))


def index_bytes(content: bytes) -> Lie:
    return lambda members, path: write_tar(path, [member("index.json", content), *members[1:]])


def also(made: Member) -> Lie:
    """A member that the index lists, behind the others."""

    def lie(members: list[Member], path: Path) -> object:
        plain = member(made[0].name, made[1])
        return write_tar(path, [sealed([*members, plain])[0], *members[1:], made])

    return lie


def raw(content: Callable[[bytes], bytes], **how: object) -> Lie:
    """The tar itself is another, or packed otherwise."""

    def lie(members: list[Member], path: Path) -> object:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for info, inner in members:
                tar.addfile(info, io.BytesIO(inner))
        return path.write_bytes(lzma.compress(content(buffer.getvalue()), **how))  # type: ignore[arg-type]

    return lie


def zeros(before: Callable[[list[Member]], bytes], n_bytes: int = 13 << 24) -> Lie:
    """`before`, then so many zeros, more than may be held, in a file of at most half a megabyte."""

    def lie(members: list[Member], path: Path) -> object:
        packer = lzma.LZMACompressor(preset=0)
        with open(path, "wb") as handle:
            handle.write(packer.compress(before(members)))
            for _ in range(n_bytes >> 24):
                handle.write(packer.compress(bytes(1 << 24)))
            return handle.write(packer.flush())

    return lie


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    made = tarfile.TarInfo(name)
    made.size, made.type = size, kind
    return made.tobuf(tarfile.GNU_FORMAT)


def large_metrics(members: list[Member]) -> bytes:
    name = f"{RUN}/metrics.jsonl"
    files = json.loads(sealed(members)[0][1])["files"] | {name: {"bytes": 3 * GIB, "sha256": "0" * 64}}
    first = sealed(members, files=files)[0]
    padding = -len(first[1]) % 512
    return header("index.json", len(first[1])) + first[1] + bytes(padding) + header(name, 3 * GIB)


def pax(records: bytes) -> Callable[[bytes], bytes]:
    """An extended header before the first member."""
    block = header("././@PaxHeader", len(records), tarfile.XHDTYPE) + records + bytes(-len(records) % 512)
    return lambda content: block + content


def record(key: str, value: str) -> bytes:
    text = f" {key}={value}\n".encode()
    size = len(text) + 1
    while len(str(size)) + len(text) != size:
        size += 1
    return str(size).encode() + text


LAUGHS = "x0: &a0 [a,a,a,a,a,a,a,a,a]\n" + "".join(
    f"x{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)
AXES = ", ".join(
    f"{name}: {{training.{field}: [{','.join(f'{i}e-9' for i in range(1, 400))}]}}"
    for name, field in (("a", "lr"), ("b", "weight_decay"), ("c", "grad_clip"))
)

LIES: dict[str, Lie] = {
    # code
    "study: a plugin": study("name:", f"plugins: [{EVIL}]\nname:"),
    "study: a module that ends the process": study("name:", "plugins: [venv.__main__]\nname:"),
    "study: a task from outside": study("evaluation: {", f"evaluation: {{tasks: ['{EVIL}:x'], "),
    "study: a YAML tag that calls": study("name: tiny", "name: !!python/object/apply:os.mkdir [" + MARK + "]"),
    "run: a plugin": of_json(f"{RUN}/run.json", lambda record: record["spec"].update(plugins=[EVIL])),
    "run: a plugin of its own": of_json(
        f"{RUN}/run.json", lambda record: record["spec"].update(plugins=[EVIL], arch="evil")
    ),
    # places; more of them: DAMAGES of test_unpack.py
    "a second index": replaced("study/index.json", b"{}"),
    "a name that no disk can hold": replaced(f"study/{'a' * 300}.json", b"{}"),
    "a second index in capitals": replaced("study/INDEX.json", b"{}"),
    "a hidden file": replaced("study/.profile.yaml", b"a: 1"),
    "a hidden run": replaced("runs/.git/run.json", b"{}", runs={"runs/.git": "a"}),
    "a backslash": replaced("study/..\\up.json", b"{}"),
    "a hard link": also(member("study/law.json", b"", tarfile.LNKTYPE, linkname="index.json")),
    "a pipe": also(member("study/law.json", b"", tarfile.FIFOTYPE)),
    "a device": also(member("study/law.json", b"", tarfile.CHRTYPE, devmajor=1, devminor=5)),
    "a header with another name": raw(pax(record("path", "../up.json"))),
    "a header of a sparse file": raw(pax(record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0"))),
    # sizes
    "3 GiB in a member": zeros(large_metrics),
    "3 GiB behind the last member": zeros(lambda members: b""),
    "3 GiB in a header": zeros(lambda members: header("././@PaxHeader", 3 * GIB, tarfile.XHDTYPE)),
    "3 GiB of a long name": zeros(lambda members: header("././@LongLink", 3 * GIB, tarfile.GNUTYPE_LONGNAME)),
    "3 GiB of an index": zeros(lambda members: header("index.json", 3 * GIB)),
    "a member of less than no bytes": raw(lambda tar: header("index.json", -512) + tar),
    "1 GiB for xz": raw(lambda tar: tar, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": GIB}]),
    "an index of 15 MB": index_bytes(b'{"kind": "bundle of a study", "x": [' + b"[]," * 5_000_000 + b"[]]}"),
    "an index of unknown keys": index_bytes(
        b'{"kind":"bundle of a study","schema":1,' + b",".join(b'"k%d":0' % i for i in range(290_000)) + b"}"
    ),
    "an index of wrong values": index(runs={str(i): 0 for i in range(250_000)}),
    "an index of wrong lists": index(runs={str(i): [1] for i in range(100_000)}),
    "an index that is deep": index_bytes(
        b'{"kind": "bundle of a study", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    ),
    "an index with a terminal's commands": index(runs={"runs/x": "\x1b]0;owned\x07", "runs/\x1b]0;owned\x07": "x"}),
    "a record of 900 kB": replaced(f"{RUN}/run.json", b'{"x": [' + b"[]," * 300_000 + b"[]]}"),
    "a record of 10 MB": replaced(f"{RUN}/run.json", b'{"x": "' + b"a" * 10_000_000 + b'"}'),
    "a manifest that lists a device": of_json(
        f"{CHECKPOINT}/manifest.json", lambda record: record["files"].update({"/dev/zero": {"bytes": 0, "sha256": ""}})
    ),
    "a manifest that lists what lies above": of_json(
        f"{CHECKPOINT}/manifest.json",
        lambda record: record["files"].update({"../../../up": {"bytes": 0, "sha256": ""}}),
    ),
    "a corpus that lists a device": of_json(
        "corpus/manifest.json", lambda record: record["files"].update({"/dev/zero": {"bytes": 0, "sha256": ""}})
    ),
    "rows that are one line": replaced(f"{RUN}/metrics.jsonl", b"a" * 60_000_000),
    "rows that are empty": replaced(f"{RUN}/metrics.jsonl", b"{}\n" * 1_000_000),
    "a study of aliases": study("name:", LAUGHS + "name:"),
    "a study of 60 million runs": study("sizes: [6k, 14k]", f"sizes: [6k, 14k], axes: {{{AXES}}}"),
    "a study of 10^9 layers": study("context_length: 64", "context_length: 64, n_layers: 1000000000"),
    "a run of 10^9 layers": of_json(f"{RUN}/run.json", lambda record: record["spec"]["model"].update(n_layers=10**9)),
    "a run of 10^18 tokens": of_json(
        f"{RUN}/run.json", lambda record: record["spec"]["training"].update(n_tokens=10**18, batch_tokens=64)
    ),
    "a table that is none": replaced("results/evals.parquet", b"PAR1" + bytes(1000) + b"PAR1"),
}


def make(name: str, honest: Path, folder: Path) -> Path:
    """The bundle of that name in `folder`."""
    path = folder / f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}.tar.xz"
    LIES[name](read_tar(honest), path)
    return path
