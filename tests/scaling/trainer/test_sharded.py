"""A model that no process holds whole: its first weights, checkpoint and probe loss are to the bit those of a model in
one piece. As a program: what its processes do in the folder that is named; the first prints the results."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from arch.config import ARCHS
from arch.errors import InputError
from arch.model.lm import WEIGHTS, build_model, load_model
from arch.presets import preset
from data.files import MANIFEST, read_json, sha256, write_json
from scaling.rundir.checkpoint_writer import holds, probe_loss
from scaling.trainer import engine as engine_module
from scaling.trainer.engine import Engine, start_distributed
from scaling.trainer.process import end_with
from scaling.trainer.sharded import ShardedModel, saved_model

from .. import forks
from ..small_runs import BATCH, make_run, train
from .step_loops import CONTEXT, CPU, ROWS, SHORT, batches, mixed_model, short, training

DTYPES = (torch.float32, torch.bfloat16)


@pytest.mark.parametrize(("arch", "tie"), [("llama", False), *((arch, True) for arch in ARCHS)])
def test_a_sharded_model_begins_with_the_same_weights(arch: str, tie: bool, tmp_path: Path) -> None:
    """Matrices, gates' bounds, position encodings and what mixers fill themselves."""
    config = preset(arch, "14k", context_length=CONTEXT, chunk_size=16, tie_embeddings=tie)
    engine = Engine(build_model(config, None), training(zero_stage=3), ROWS, CPU, start_distributed("cpu"), seed=5)
    sharded = saved_model(engine)
    assert isinstance(sharded, ShardedModel)
    sharded.save_pretrained(tmp_path / "sharded", torch.float32)
    build_model(config, 5).save_pretrained(tmp_path / "whole")
    assert_equal_files(tmp_path / "sharded", tmp_path / "whole")


@pytest.mark.parametrize("kind", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu(n=2))])
@pytest.mark.parametrize(("tie", "persistent"), [(True, 0), (False, engine_module.PERSISTENT)])
def test_two_processes_write_and_read_what_one_does(tie: bool, persistent: int, kind: str, tmp_path: Path) -> None:
    """GPUs: losses to rounding, since a sharded model takes fewer fused operations, and softmax does not repeat."""
    words = [__name__, str(tmp_path), str(int(tie)), str(persistent), kind]
    rounding = 0.0 if kind == "cpu" else 1e-5
    code, out, err = forks.run(*words, processes=2, fresh=kind == "cuda")
    assert code == 0, err[-3000:]
    results = json.loads(out.splitlines()[-1])
    for dtype in DTYPES:
        mixed_model(tie).save_pretrained(tmp_path / "one", dtype)
        path = tmp_path / str(dtype).removeprefix("torch.")
        assert_equal_files(path, tmp_path / "one")
        loss = probe_loss(load_model(path).to(kind).eval(), rows().to(kind))
        assert results[path.name] == pytest.approx(loss, rel=rounding, abs=0)
    assert results["float32"] != results["bfloat16"], "bf16 must round some weight"
    np.testing.assert_allclose(results["disturbed"], results["undisturbed"], rtol=100 * rounding)
    assert len(results["of each process"]) == 2
    for held, no_room, too_short in results["of each process"]:
        assert held == [True, True, False, False]
        assert no_room == "[Errno 28] No space left on device"
        assert "model.safetensors: cannot be read (it ends too early); remove this directory" in too_short


def test_a_checkpoint_that_is_there_is_written_again_only_where_its_weights_are_others(tmp_path: Path) -> None:
    rundir = make_run(tmp_path, n_steps=4, state_every_tokens=2 * BATCH, keep_states=2, zero_stage=3)
    code, out, err = train(rundir, processes=2)
    assert code == 0, out + err
    last = rundir.checkpoints()[-1].path
    assert last.name == "00000004"
    expected, written = (last / WEIGHTS).read_bytes(), (last / WEIGHTS).stat().st_mtime_ns
    for others in (False, True):
        shutil.rmtree(rundir.state(4))
        rundir.write_status("running", 2, 2 * BATCH, "stopped", None)
        if others:
            (last / WEIGHTS).write_bytes(expected[:-1] + bytes([expected[-1] ^ 1]))
            manifest = read_json(last / MANIFEST)
            manifest["files"][WEIGHTS]["sha256"] = sha256(last / WEIGHTS)
            write_json(last / MANIFEST, manifest)
        code, out, err = train(rundir, processes=2)
        assert code == 0, out + err
        assert ((last / WEIGHTS).stat().st_mtime_ns != written, "written again" in out) == (others, others)
        assert (last / WEIGHTS).read_bytes() == expected


def assert_equal_files(folder: Path, expected: Path) -> None:
    for name in ("config.json", WEIGHTS):
        assert (folder / name).read_bytes() == (expected / name).read_bytes(), name


def rows() -> torch.Tensor:
    return batches(SHORT)[-1]


def main(folder: Path, tie: bool, persistent: int, kind: str) -> int:
    torch.set_num_threads(1)
    ranks = start_distributed(kind)
    device = torch.device(kind, ranks.local) if kind == "cuda" else CPU
    engine_module.PERSISTENT = persistent
    settings = short(zero_stage=3, precision="fp32" if tie else "bf16")
    engines = [
        Engine(build_model(mixed_model(tie).model_config, None), settings, ROWS, device, ranks, seed=0)
        for _ in range(2)
    ]

    def steps(engine: Engine, first: int, last: int) -> list[tuple[float, float]]:
        made = (engine.step(tokens[engine.rows], 3e-3) for tokens in batches(SHORT)[first:last])
        return [(float(loss), float(norm)) for loss, norm in made]

    def error_of(work: Callable[[], object]) -> str:
        with pytest.raises((OSError, InputError)) as raised:
            work()
        return str(raised.value)

    results: dict[str, object] = {}
    sharded = saved_model(engines[0])
    assert isinstance(sharded, ShardedModel)
    files = {dtype: folder / str(dtype).removeprefix("torch.") for dtype in DTYPES}
    for dtype, path in files.items():
        sharded.save_pretrained(None if ranks.rank else path, dtype)
        results[path.name] = sharded.probe_loss(None if ranks.rank else path, rows().to(device))
    held = [holds(path, sharded) for path in files.values()]
    disturbed = steps(engines[0], 0, 3)
    sharded.probe_loss(None if ranks.rank else files[torch.bfloat16], rows().to(device))
    disturbed += steps(engines[0], 3, 6)
    held += [holds(path, sharded) for path in files.values()]
    full, cut = folder / "full", folder / "cut"
    if not ranks.rank:
        for path in (full, cut):
            path.mkdir()
        (full / WEIGHTS).symlink_to("/dev/full")
        (cut / WEIGHTS).write_bytes((files[torch.float32] / WEIGHTS).read_bytes()[:-5])
    no_room = error_of(lambda: sharded.save_pretrained(None if ranks.rank else full, torch.float32))
    too_short = error_of(lambda: sharded.probe_loss(None if ranks.rank else cut, rows().to(device)))
    results["of each process"] = engines[0].together(lambda: (held, no_room, too_short))
    results |= {"disturbed": disturbed, "undisturbed": steps(engines[1], 0, 6)}
    if not ranks.rank:
        print(json.dumps(results))
    return 0


if __name__ == "__main__":
    end_with(lambda: main(Path(sys.argv[1]), sys.argv[2] == "1", int(sys.argv[3]), sys.argv[4]))
