"""Writes that either happened or did not: temp -> fsync -> rename, a directory's manifest last.

A directory without a valid manifest does not exist. Every commit passes `kill_point`, where the fault tests stop the
process group at a chosen write; it costs one dictionary look-up otherwise.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from arch.errors import InputError
from data.left_out import left_out

MANIFEST = "manifest.json"
SEAL = "content_sha256"  # the key of a JSON object under which the digest of its other keys stands
STAGE = "LINEAR_SCALING_STAGE"  # a variable: the folder of this node that corpora are copied to (data.staging)
LITTLE_SPACE = 1 << 20  # bytes; a disk with less is full
_commits: dict[str, int] = {}
# a context variable: runs that take turns in one process have guards of their own
_guards: ContextVar[tuple[Callable[[], None], ...]] = ContextVar("guards", default=())


def kill_point(kind: str) -> None:
    """Die by SIGKILL, with the whole process group, at the n-th write of `kind` (environment KILL_AT_WRITE=kind:n)."""
    wanted = os.environ.get("KILL_AT_WRITE")
    if wanted is None:
        return
    _commits[kind] = _commits.get(kind, 0) + 1
    if wanted == f"{kind}:{_commits[kind]}":
        os.killpg(os.getpgid(0), signal.SIGKILL)


@contextmanager
def guarded(check: Callable[[], None]) -> Iterator[None]:
    """Call `check` before every write inside; what it raises prevents the write."""
    before = _guards.set((*_guards.get(), check))
    try:
        yield
    finally:
        _guards.reset(before)


def check_guards() -> None:
    """Raise what a guard raises; for writes made without this module."""
    for check in _guards.get():
        check()


def fsync_dir(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_bytes(path: Path, content: bytes, kind: str = "file") -> None:
    """Replace `path` by `content`, or leave it as it was. `kind` names the write for the fault tests."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        kill_point(kind)
        check_guards()
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_dir(path.parent)


def write_json(path: Path, value: Any, kind: str = "file") -> None:
    """Write `value`; an object carries the digest of its content, which `read_json` checks."""
    write_bytes(path, json_bytes(value), kind)


def json_bytes(value: Any) -> bytes:
    """What `write_json` writes."""
    text = json.dumps(value, indent=1, allow_nan=False)
    if isinstance(value, dict):
        value = json.loads(text)  # as it is read again: keys are strings
        text = json.dumps(value | {SEAL: hash_of(value)}, indent=1)
    return (text + "\n").encode()


def hash_of(value: Any) -> str:
    """SHA-256, in hex, over the canonical JSON of `value`."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def parse_json(content: bytes | str, any_number: bool = False) -> Any:
    """`content` as JSON with finite numbers, integers of 64 bits, each key once and text that UTF-8 can write.

    any_number: as other people's tables have them, longer integers and NaN too. Raises ValueError alone, whatever is
    wrong.
    """
    strict: dict[str, Any] = {"parse_int": _int64, "parse_float": _finite, "parse_constant": _finite}
    try:
        content = content.decode() if isinstance(content, bytes) else content
        value = json.loads(content, object_pairs_hook=_keys_once, **({} if any_number else strict))
        if "\\u" in content:
            json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair has no UTF-8
    except (RecursionError, MemoryError) as error:
        raise ValueError(f"too deep or too large ({type(error).__name__})") from None
    return value


def _int64(text: str) -> int:
    if len(text) > 20 or not -(1 << 63) <= int(text) < 1 << 63:
        raise ValueError(f"the integer {text[:24]} does not fit into 64 bits")
    return int(text)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:24]} is no finite number")
    return value


def _keys_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} stands twice")
    return value


def unsealed(content: bytes | str) -> Any:
    """What `parse_json` makes of `content`, an object without its digest. Raises ValueError where that is missing or
    wrong."""
    value = parse_json(content)
    if isinstance(value, dict):
        if SEAL not in value:
            raise ValueError(f"it has no {SEAL}: this program did not write it")
        if value.pop(SEAL) != hash_of(value):
            raise ValueError(f"it was changed or damaged: its content does not match its {SEAL}")
    return value


def read_json(path: Path) -> Any:
    """What `unsealed` makes of a regular file. Raises OSError and ValueError alone."""
    return unsealed(regular(path).read_bytes())


def read_object(path: Path) -> dict[str, Any]:
    """As `read_json`; raises ValueError for JSON that is no object."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise ValueError(f"a JSON object is expected, not {type(value).__name__}")
    return value


def regular(path: Path) -> Path:
    """`path`, where it is a regular file or a link to one: what else stands there may have no end. Raises OSError, and
    ValueError for a device, a pipe, a folder."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path.name} is no regular file")
    return path


def listed(directory: Path, name: str) -> Path:
    """The regular file that a manifest of `directory` calls `name`. Raises OSError where there is none, and ValueError
    for a name that leads out of the directory or to something else than a file."""
    if not is_plain(name):
        raise ValueError(f"{name!r} leads out of {directory.name}")
    return regular(directory / name)


def is_plain(name: object) -> bool:
    """Whether `name` is a relative path of printable characters that stays in its folder."""
    parts = name.split("/") if isinstance(name, str) and name.isprintable() and "\\" not in name else [""]
    return not {"", ".", ".."} & {*parts}


@contextmanager
def reading(path: Path | str, advice: str = "") -> Iterator[None]:
    """Turn whatever a library raises on a damaged or foreign file into one InputError that names it.

    Libraries raise more than their manuals list (zlib.error, KeyError, MemoryError, ...): readers of files list no
    exceptions of their own. advice: what the user can do, added after a semicolon.
    """
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{path}: cannot be read ({reason}){advice and '; ' + advice}") from None
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or "no reason given"
        raise InputError(
            f"{path}: cannot be read ({type(error).__name__}: {reason}){advice and '; ' + advice}"
        ) from None


def sha256(path: Path) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


@contextmanager
def new_directory(path: Path, manifest: dict[str, Any], kind: str = "directory") -> Iterator[Path]:
    """Fill a temporary directory, then put it at `path` with a manifest of `manifest` and the files' checksums.

    The body may add keys to `manifest`. A leftover without a valid manifest at `path` is replaced.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        seal_directory(temporary, path, manifest, kind)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def seal_directory(
    temporary: Path,
    path: Path,
    manifest: dict[str, Any],
    kind: str = "directory",
    files: dict[str, dict[str, Any]] | None = None,
) -> None:
    """Checksum and fsync every file below `temporary`, write its manifest last, and rename it to `path`. files: bytes
    and sha256 of all of them by name, where their writers have done so."""
    if files is None:
        files = {}
        for file in sorted(p for p in temporary.rglob("*") if p.is_file()):
            with open(file, "rb+") as handle:
                os.fsync(handle.fileno())
            files[str(file.relative_to(temporary))] = {"bytes": file.stat().st_size, "sha256": sha256(file)}
    for folder in (p for p in temporary.rglob("*") if p.is_dir()):
        fsync_dir(folder)
    kill_point(kind)
    write_json(temporary / MANIFEST, manifest | {"files": files}, kind=f"{kind}-manifest")
    check_guards()
    if path.exists():
        shutil.rmtree(path)
    os.replace(temporary, path)
    fsync_dir(path.parent)


def remove_unfinished(*directories: Path, below: bool = False) -> None:
    """Remove the temporary files and directories of writes that a kill cut short; with `below`, at any depth."""
    for directory in directories:
        for path in list(directory.rglob(".*.tmp") if below else directory.glob(".*.tmp")):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def read_manifest(path: Path, verify: bool = True, partial: bool = False) -> dict[str, Any] | None:
    """The manifest of directory `path`, or None where it is missing, unreadable or (with `verify`) does not match.

    partial: files that were left out on purpose (data.left_out) are not missed; for readers that need none of them.
    """
    try:
        manifest = read_json(path / MANIFEST)
        absent = left_out(path) if partial else frozenset[str]()
        for name, expected in manifest["files"].items():
            if name in absent:
                continue
            file = listed(path, name)
            if file.stat().st_size != expected["bytes"] or (verify and sha256(file) != expected["sha256"]):
                return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return manifest if isinstance(manifest, dict) else None


def damage(path: Path, prefix: str = "") -> str:
    """What is wrong with the first file of directory `path`, of those whose names begin with `prefix`, that does not
    match its manifest; "" where all do."""
    try:
        manifest = read_json(path / MANIFEST)
        for name, expected in manifest["files"].items():
            if not name.startswith(prefix):
                continue
            if is_plain(name) and not (path / name).exists():
                return f"{name} is missing"
            if (size := (file := listed(path, name)).stat().st_size) != expected["bytes"]:
                return f"{name} has {size:,} bytes, its manifest says {expected['bytes']:,}"
            if sha256(file) != expected["sha256"]:
                return f"{name} differs from its checksum"
    except ValueError as error:
        return f"{MANIFEST}: {error}"
    except (OSError, KeyError, TypeError, AttributeError) as error:
        return f"{MANIFEST} cannot be read: {type(error).__name__}"
    return ""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name `path` in an OSError that names no file, and make OSError ENOSPC of what libraries raise on a full disk
    (PyTorch: a RuntimeError without a reason)."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    except Exception as error:
        if os.strerror(errno.ENOSPC) in str(error) or _space(path.parent) < LITTLE_SPACE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        raise


def _space(directory: Path) -> float:
    """Free bytes where `directory` is; infinite where that is unknown."""
    try:
        return shutil.disk_usage(directory).free
    except OSError:
        return math.inf
