"""The decode benchmark: constant states stay constant, LLaMA's cache grows with what was read."""

import pytest

from arch.config import ARCHS
from arch.errors import InputError
from arch.model.lm import build_model
from arch.presets import preset
from benchmarks import decoding
from benchmarks.decoding import decode_steps
from flops.state import decode_state

LENGTHS = (16, 1100)


@pytest.mark.parametrize("arch", ARCHS)
def test_states_are_as_large_as_the_counts_say(arch, monkeypatch):
    monkeypatch.setattr(decoding, "REPEATS", 2)
    config = preset(arch, "6k", context_length=LENGTHS[-1])
    steps = list(decode_steps(build_model(config).eval(), LENGTHS, batch=2))
    assert [step.n_tokens for step in steps] == list(LENGTHS) and all(step.step_ms > 0 for step in steps)
    for step in steps:
        assert step.state_bytes == decode_state(config, step.n_tokens)["bytes"]
    assert (steps[0].state_bytes == steps[1].state_bytes) is config.constant_state


@pytest.mark.gpu("CUDA graphs")
@pytest.mark.parametrize("arch", ARCHS)
def test_a_step_can_be_recorded(arch):
    model = build_model(preset(arch, "6k", context_length=LENGTHS[-1])).cuda().eval()
    plain, recorded = (list(decode_steps(model, LENGTHS, 2, graph=graph)) for graph in (False, True))
    assert [step.state_bytes for step in recorded] == [step.state_bytes for step in plain]
    assert all(step.step_ms > 0 for step in recorded)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lengths", "0"], "--lengths 0: write whole numbers, 1 or more"),
        (["--device", "moon"], "--device moon: PyTorch finds no such device"),
        (["--graph"], "--graph: cpu has no CUDA graphs"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_measured(arguments, message, capsys):
    with pytest.raises(InputError, match=message):
        decoding.main(arguments)
    assert not capsys.readouterr().out
