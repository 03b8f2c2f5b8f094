"""What launchers say in the environment: who obeys it, who does not, and that nonsense is one line."""

from __future__ import annotations

import os

import pytest

from arch.errors import InputError
from scaling.rundir.launcher import Ranks, alone, leave, ranks_of, what_was_left

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
STEP = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "7"}
VARIABLES = {
    **TORCHRUN,
    **dict.fromkeys(("LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "NODE_RANK", "CROSS_RANK"), "1"),
    **dict.fromkeys(("TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "PET_NNODES", "PET_RDZV_ENDPOINT"), "1"),
    **dict.fromkeys(("OMPI_COMM_WORLD_RANK", "OMPI_MCA_btl", "PMI_RANK", "PMI2_FD", "PMIX_RANK", "PMI_FD"), "1"),
    **dict.fromkeys(("MV2_COMM_WORLD_SIZE", "MPI_LOCALRANKID", "ACCELERATE_USE_FSDP", "LOCAL_SIZE"), "1"),
    **dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS"), "1"),
}
OWN = {"PATH": "/bin", "RANKS": "1", "MASTER": "x", "SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "0", "PMIX": "x"}


def test_ranks_come_from_the_environment() -> None:
    assert ranks_of(TORCHRUN) == Ranks(3, 4, 1, "a:29500") and ranks_of({}) == Ranks()
    assert ranks_of({"RANK": "0", "WORLD_SIZE": "1"}) == Ranks(), "one process alone needs no address"
    assert ranks_of(STEP) == Ranks()
    with pytest.raises(InputError, match="start it with jobs"):
        ranks_of(STEP | {"SLURM_STEP_NUM_TASKS": "2"})


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WORLD_SIZE": "abc"}, "WORLD_SIZE='abc': must be a whole number, at least 1"),
        *(({"WORLD_SIZE": text}, "WORLD_SIZE=") for text in ("", "0", "-2", "4.0", "4\n", " 4", "٤", "9" * 30)),
        ({"RANK": "4"}, "RANK='4': must be a whole number, 0 to 3"),
        ({"RANK": "-1"}, "RANK='-1': must be a whole number, 0 to 3"),
        ({"LOCAL_RANK": "x"}, "LOCAL_RANK='x': must be a whole number, at least 0"),
        ({"MASTER_PORT": "66000"}, "MASTER_PORT='66000': must be a whole number, 1 to 65535"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR missing beside RANK=3 and WORLD_SIZE=4"),
        *(({name: None}, f"{name} is missing; start with torchrun") for name in ("RANK", "WORLD_SIZE")),
        ({"MASTER_ADDR": None, "MASTER_PORT": None}, "MASTER_ADDR, MASTER_PORT missing"),
    ],
)
def test_nonsense_is_one_line(variables: dict[str, str | None], message: str) -> None:
    env = {name: value for name, value in (TORCHRUN | variables).items() if value is not None}
    with pytest.raises(InputError, match=f"environment: {message}") as error:
        ranks_of(env)
    assert "\n" not in str(error.value)


def test_a_process_that_starts_others_leaves_the_launchers_words_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    assert alone(VARIABLES | OWN) == OWN
    what_was_left()
    for name, value in {"SLURM_PROCID": "0", "PMI_RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    leave()
    assert what_was_left() is None and "PMI_RANK" not in os.environ, "every step of srun has them"
    for name in VARIABLES:
        monkeypatch.setenv(name, "1")
    leave()
    assert not VARIABLES.keys() & os.environ.keys()
    assert (warning := what_was_left()) and warning.startswith("the environment's ACCELERATE_USE_FSDP, CROSS_RANK, ")
    assert "not used" in warning and "\n" not in warning and what_was_left() is None, "once"
