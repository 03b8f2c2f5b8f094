"""States of our own: any number of processes at any ZeRO stage goes on from them, and what cannot is one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from arch.errors import InputError
from data.files import read_json, sha256, write_json
from scaling.rundir.directory import RunDir
from scaling.rundir.launcher import Ranks
from scaling.rundir.prepare import check_run
from scaling.rundir.saved import stored_numbers
from scaling.trainer.engine import start_distributed
from scaling.trainer.state import load_state, save_state

from .. import forks
from ..small_runs import BATCH, make_run, train, train_here
from .segments import batches, make_engine
from .segments import train as train_steps


def segments(folder: Path, *parts: tuple[int, int, int]) -> dict[str, Any]:
    folder.mkdir()
    code, out, err = forks.run("tests.scaling.trainer.segments", str(folder), json.dumps(parts))
    assert code == 0, err[-3000:]
    read: dict[str, Any] = json.loads(out.splitlines()[-1])
    return read


def whole(state: Path) -> dict[str, np.ndarray]:
    """Weight, moments and steps of every parameter, put together from the pieces."""
    parts: dict[str, list[tuple[int, np.ndarray]]] = {}
    for piece in state.glob("*.safetensors"):
        for key, tensor in load_file(piece).items():
            name, _, start = key.rpartition("/")
            parts.setdefault(name, []).append((int(start), tensor.numpy()))
    return {name: np.concatenate([part for _, part in sorted(held, key=itemgetter(0))]) for name, held in parts.items()}


CHAINS = [
    ((2, 1, 4), (1, 3, 8), (2, 2, 12)),
    pytest.param(((2, 1, 5), (1, 3, 10), (4, 2, 15), (2, 0, 20)), marks=pytest.mark.slow),
    pytest.param(((2, 3, 5), (1, 0, 10), (4, 3, 15), (2, 2, 20)), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("chain", CHAINS)
def test_processes_and_stages_may_change(tmp_path: Path, chain: tuple[tuple[int, int, int], ...]) -> None:
    """Two, one and two processes (or four) at other stages: the run of one process at stage 0, to rounding."""
    n_steps = chain[-1][-1]
    undisturbed = make_engine(0, start_distributed("cpu"))
    rows = np.array(train_steps(batches()[:n_steps], undisturbed))
    save_state(undisturbed, tmp_path / "one", n_steps, {}, keep=1)
    assert rows[-1, 0] < rows[0, 0] - 0.2, "it must learn, else equality says nothing"
    others = segments(tmp_path / "several", *chain)
    assert others["weight_decay"] == [[0.1, 0.0]] * len(chain)
    np.testing.assert_allclose(others["rows"], rows, rtol=1e-6)
    expected, actual = (whole(tmp_path / name / f"{n_steps:08d}") for name in ("one", "several"))
    assert actual.keys() == expected.keys()
    for name, values in expected.items():
        assert np.abs(actual[name] - values).max() <= 1e-4 * np.abs(values).max(), name


@pytest.mark.parametrize("stage", [3, *(pytest.param(stage, marks=pytest.mark.slow) for stage in (0, 1, 2))])
def test_as_many_processes_at_the_same_stage_repeat_every_bit(tmp_path: Path, stage: int) -> None:
    through = segments(tmp_path / "through", (2, stage, 6))
    broken = segments(tmp_path / "broken", (2, stage, 3), (2, stage, 6))
    assert broken["rows"] == through["rows"]
    pieces = [sorted((tmp_path / name / "00000006").glob("*.safetensors")) for name in ("through", "broken")]
    assert len(pieces[0]) == 2 and [p.read_bytes() for p in pieces[0]] == [p.read_bytes() for p in pieces[1]]


def test_a_state_of_other_parameters_or_with_a_gap_is_refused(tmp_path: Path) -> None:
    engine = make_engine(0, start_distributed("cpu"))
    train_steps(batches()[:2], engine)
    save_state(engine, tmp_path, 2, {}, keep=1)
    piece = tmp_path / "00000002" / "00000-of-00001.safetensors"
    other = make_engine(0, Ranks(), d_model=24)
    with pytest.raises(InputError, match=r"00000002 is of other parameters: \S+ is \[.*18.*\], this model's \[.*24"):
        load_state(other, tmp_path, 2)
    name = next(key for key in load_file(piece) if "/exp_avg/" in key).split("/")[0]
    key = f"{name}/exp_avg/0"
    changes: list[tuple[Callable[[dict[str, Tensor]], dict[str, Tensor]], str]] = [
        (lambda tensors: tensors | {key: tensors[key][:-1].clone()}, rf"exp_avg of {name}: \S+ of \S+ numbers"),
        (lambda tensors: tensors | {f"{name}/exp_avg/1": torch.ones(4)}, "numbers are there, .* were written"),
        (lambda tensors: without(tensors, key), "numbers are there, .* were written"),
        (lambda tensors: without(tensors, f"{name}/"), f"weight of {name}: 0 of"),
        (lambda tensors: tensors | {"another/weight/0": torch.ones(4)}, "weight of another: 4 of 0 numbers"),
        (lambda tensors: tensors | {key: tensors[key].bfloat16()}, f"{key} is not fp32"),
    ]
    good = piece.read_bytes()
    for change, what in changes:
        piece.write_bytes(good)
        save_file(change(load_file(piece)), piece)
        seal(piece.parent)
        with pytest.raises(InputError, match=rf"00000002\S*: (is no|cannot be) .*{what}.*; remove this directory"):
            load_state(engine, tmp_path, 2)
    for content in (b"\x80\x04pickled", b"", good[:50]):
        piece.write_bytes(content)
        with pytest.raises(InputError, match="00000002: is damaged; remove this directory"):
            load_state(engine, tmp_path, 2)
        seal(piece.parent)
        with pytest.raises(InputError, match=r"safetensors: cannot be read .*; remove this directory"):
            load_state(engine, tmp_path, 2)


def without(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key: tensor for key, tensor in tensors.items() if not key.startswith(prefix)}


def seal(state: Path) -> None:
    """Give a state's manifest the digests of its pieces as they are."""
    files = {file.name: {"bytes": file.stat().st_size, "sha256": sha256(file)} for file in state.glob("*.safetensors")}
    write_json(state / "manifest.json", read_json(state / "manifest.json") | {"files": files})


def test_what_a_disk_does_not_read_or_write_is_named(tmp_path: Path) -> None:
    engine = make_engine(0, start_distributed("cpu"))
    train_steps(batches()[:2], engine)
    (name,) = engine.save(tmp_path)
    piece, full = tmp_path / name, tmp_path / "full"
    held = stored_numbers(tmp_path, [name])
    piece.write_bytes(piece.read_bytes()[:-5])
    with pytest.raises(InputError, match=rf"{piece}: cannot be read \(it ends too early\); remove"):
        engine.load(held)
    piece.unlink()
    with pytest.raises(InputError, match=rf"{piece}: cannot be read \(No such file or directory\); remove"):
        engine.load(held)
    piece.symlink_to("/proc/self/mem")
    with pytest.raises(InputError, match=rf"{piece}: cannot be read \(Input/output error\); remove"):
        stored_numbers(tmp_path, [name])
    full.mkdir()
    (full / name).symlink_to("/dev/full")
    with pytest.raises(OSError, match=rf"No space left on device: '{full / name}'"):
        engine.save(full)
    with pytest.raises(OSError, match=rf"No such file or directory: '{tmp_path / 'gone' / name}'"):
        engine.save(tmp_path / "gone")


def stopped(rundir: RunDir, step: int) -> None:
    """As a run that was stopped after `step` left it."""
    for folder in ("checkpoints", "state"):
        for path in (rundir.path / folder).glob("[0-9]*"):
            if int(path.name) > step:
                for file in path.iterdir():
                    file.unlink()
                path.rmdir()
    rundir.write_status("running", step, step * BATCH, "stopped", None)


def test_a_state_of_the_old_form_or_without_a_moment_is_refused_before_a_process_starts(tmp_path: Path) -> None:
    """The old form was DeepSpeed's own, pickles."""
    rundir = make_run(tmp_path, state_every_tokens=6 * BATCH)
    assert train_here(rundir) == 0
    run, state = rundir.spec(), rundir.state(6)
    stopped(rundir, 6)
    assert check_run(rundir, run)
    piece = next(state.glob("*.safetensors"))
    good = piece.read_bytes()
    piece.write_bytes(bytes([good[0] ^ 1]) + good[1:])
    assert check_run(rundir, run), "a damaged state is not used: the run goes on from an earlier one"
    piece.write_bytes(good)
    save_file({key: tensor for key, tensor in load_file(piece).items() if "/exp_avg/" not in key}, piece)
    seal(state)
    with pytest.raises(InputError, match=rf"{state}: is no training state \(\S+ numbers are there, \S+ were written"):
        check_run(rundir, run)
    (state / "deepspeed").mkdir()
    file = next(state.glob("*.safetensors")).rename(state / "deepspeed" / "model.pt")
    manifest = {key: value for key, value in read_json(state / "manifest.json").items() if key != "parameters"}
    files = {"deepspeed/model.pt": {"bytes": file.stat().st_size, "sha256": sha256(file)}}
    write_json(state / "manifest.json", manifest | {"files": files, "zero_stage": 0})
    with pytest.raises(InputError) as refused:
        check_run(rundir, run)
    assert str(refused.value).startswith(f"{state}: was written by an earlier version")
    code, _, err = train(rundir)
    assert code == 2 and err == f"error: {refused.value}\n"
    rundir.write_status("done", 12, 12 * BATCH, None, None)
    assert check_run(rundir, run), "its results are read as ever"
