"""Schedules against closed forms, exact at both ends; token counts as multiples of parameters; what hashes are of;
how a batch splits."""

import math

import numpy as np
import pytest
import yaml

from flops import count_params, train_flops_per_token
from scaling.study.run import decisive
from scaling.study.schedule import decay_start, learning_rate, phase
from scaling.study.spec import load_study
from scaling.study.training import Training, split_batch
from tests.commands import refused

STUDY = {
    "name": "s",
    "corpus": {"source": "synthetic:0:200000"},
    "grid": {"archs": ["llama"], "sizes": ["6k"]},
    "model": {"context_length": 32},
    "training": {"n_tokens": 20_000, "batch_tokens": 256},
}


def load(tmp_path, sets=(), **training):
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(STUDY | {"training": STUDY["training"] | training}))
    return load_study(path, list(sets)).runs()


def rates(training: Training) -> np.ndarray:
    n_steps = -(-training.n_tokens // training.batch_tokens)
    return np.array([learning_rate(step, training) for step in range(1, n_steps + 1)])


@pytest.mark.parametrize("final", [0.0, 0.1, 1 / 3])
@pytest.mark.parametrize("warmup", [0, 95, 100])
@pytest.mark.parametrize(("n_tokens", "batch"), [(1000, 10), (997, 10), (1009, 7)])
def test_every_schedule_is_its_closed_form_and_exact_at_both_ends(n_tokens, batch, warmup, final):
    about = {"lr": 0.0123, "n_tokens": n_tokens, "batch_tokens": batch, "warmup_tokens": warmup}
    n_steps, warm = math.ceil(n_tokens / batch), math.ceil(warmup / batch)
    steps = np.arange(1, n_steps + 1)
    rise = np.minimum(1.0, steps * batch / warmup) if warmup else np.ones(n_steps)
    constant = rates(Training(**about))
    np.testing.assert_array_equal(constant, 0.0123 * rise)

    cosine = Training(**about, schedule="cosine", final_lr_fraction=final)
    share = np.clip((steps - warm) / (n_steps - warm), 0, 1)
    expected = 0.0123 * rise * (final + (1 - final) * (1 + np.cos(np.pi * share)) / 2)
    np.testing.assert_allclose(rates(cosine), expected, rtol=1e-14, atol=1e-18)

    for shape, power in (("linear", 1.0), ("sqrt", 0.5)):
        wsd = Training(**about, schedule="wsd", decay_fraction=0.25, decay_shape=shape, final_lr_fraction=final)
        start = n_steps - round(0.25 * n_steps)
        assert decay_start(wsd) == start
        share = np.clip((steps - start) / (n_steps - start), 0, 1)
        np.testing.assert_allclose(rates(wsd), 0.0123 * rise * (1 - (1 - final) * share**power), rtol=1e-14, atol=1e-17)
        np.testing.assert_array_equal(rates(wsd)[:start], constant[:start], "a trunk's, to the last bit")
        assert [phase(step, wsd) for step in (start, start + 1, n_steps - 1, n_steps)] == [
            "undecayed", *["decaying"] * 2, "decayed",
        ]  # fmt: skip

    for training in (cosine, wsd):
        assert rates(training)[-1] == final * 0.0123, "exactly"
        assert not warm or rates(training)[warm - 1] == 0.0123, "the last step of the warm-up has the full rate"
        cut = training.model_copy(update={"max_steps": 5})
        np.testing.assert_array_equal([learning_rate(step, cut) for step in range(1, 6)], rates(training)[:5])
    assert phase(warm + 1, cosine) == "decaying" and phase(n_steps, cosine) == "decayed"

    if warmup:
        root = Training(**about, schedule="inverse_sqrt")
        np.testing.assert_allclose(rates(root), 0.0123 * np.minimum(rise, np.sqrt(warm / steps)), rtol=1e-14)
        assert rates(root)[warm - 1] == 0.0123 and {phase(int(step), root) for step in steps} == {"undecayed"}


def test_a_hash_is_of_what_a_schedule_reads(tmp_path):
    plain, named = load(tmp_path)[0], load(tmp_path, schedule="constant")[0]
    assert plain.spec_hash == named.spec_hash and not {"schedule", "decay_fraction"} & decisive(plain.training).keys()
    others = [
        load(tmp_path, schedule="cosine")[0],
        load(tmp_path, schedule="cosine", final_lr_fraction=0)[0],
        load(tmp_path, schedule="wsd")[0],
        load(tmp_path, schedule="wsd", decay_shape="sqrt")[0],
        load(tmp_path, schedule="wsd", decay_fraction=0.1)[0],
        load(tmp_path, schedule="inverse_sqrt", warmup_tokens=512)[0],
    ]
    assert len({run.spec_hash for run in [plain, *others]}) == 7
    variant = load(tmp_path, ["training.schedule=constant"], schedule="wsd", decay_fraction=0.1)[0]
    assert variant.run_id.endswith("-scheduleconstant") and variant.spec_hash == plain.spec_hash


def test_tokens_in_millions(tmp_path):
    written = {"n_tokens": "0.02M", "warmup_tokens": ".001 M", "max_tokens": "1B", "checkpoint_tokens": ["0.01M", 2e4]}
    run, same = load(tmp_path, **written)[0], load(tmp_path, n_tokens=20_000, warmup_tokens=1000)[0]
    assert run.training.n_tokens == 20_000 and run.training.checkpoint_tokens == [10_000, 20_000]
    assert run.training.warmup_tokens == same.training.warmup_tokens == 1000
    assert load(tmp_path, n_tokens=0.02e6, warmup_tokens="1e3")[0].spec_hash == same.spec_hash
    assert load(tmp_path, ["training.n_tokens=0.0256M"])[0].run_id.endswith("-n_tokens25600")


def test_tokens_as_multiples_of_parameters(tmp_path):
    n_params = count_params(load(tmp_path)[0].config).non_embedding
    (run,) = load(tmp_path, n_tokens="20N")
    assert run.training.n_tokens == 20 * n_params and run.training.checkpoint_tokens[-1] >= 20 * n_params
    assert run.n_tokens == -(-20 * n_params // 256) * 256
    same = load(tmp_path, n_tokens=20 * n_params)[0]
    assert same.spec_hash == run.spec_hash, "however the number was given"
    assert load(tmp_path, n_tokens="20N", max_tokens=30_000)[0].training.n_tokens == 30_000
    assert load(tmp_path, n_tokens="0.5 N", max_tokens="1e9")[0].training.n_tokens == math.ceil(0.5 * n_params)
    assert load(tmp_path, ["training.n_tokens=10N"])[0].run_id.endswith("-n_tokens10N")


def test_tokens_by_a_training_compute(tmp_path):
    config = load(tmp_path)[0].config
    c = 30_000 * train_flops_per_token(config, "exact")
    (run,) = load(tmp_path, n_tokens=f"{c:.0f} FLOP")
    assert run.training.n_tokens == 30_000
    assert load(tmp_path, n_tokens=30_000)[0].spec_hash == run.spec_hash, "however the number was given"
    (rounded,) = load(tmp_path, n_tokens="2e+10FLOP")
    assert rounded.training.n_tokens == math.ceil(2e10 / train_flops_per_token(config, "exact"))
    assert load(tmp_path, n_tokens="2e10 FLOP", max_tokens=9_000)[0].training.n_tokens == 9_000
    assert load(tmp_path, ["training.n_tokens=2e10 FLOP"])[0].run_id.endswith("-n_tokens2e10FLOP")


@pytest.mark.parametrize(
    ("training", "message"),
    [
        (
            {"n_tokens": "20k"},
            "training.n_tokens: must be a whole number as 2e9 or 2B, a multiple of N such as 20N, or a compute such as",
        ),
        ({"n_tokens": "0N"}, "multiple of N"),
        ({"n_tokens": "2e99 FLOP"}, "a compute such as 2e14 FLOP, not '2e99 FLOP'"),
        ({"n_tokens": "1e30 FLOP"}, "are more than 1e+18 tokens: plan fewer"),
        ({"n_tokens": "1 FLOP"}, "is more than n_tokens=1"),
        ({"n_tokens": "２e9 FLOP"}, "a compute such as 2e14 FLOP"),
        ({"schedule": "inverse_sqrt"}, "training.warmup_tokens of llama/6k is 0: schedule inverse_sqrt falls from"),
        ({"schedule": "wsd", "warmup_tokens": 18_000}, "of llama/6k reaches into the decay, which begins after 16,128"),
        ({"schedule": "cosine", "warmup_tokens": 19_999}, "reaches into the decay"),
        (
            {"decay_fraction": 0.1},
            "training.decay_fraction of llama/6k means nothing to schedule constant, only to wsd",
        ),
        ({"schedule": "cosine", "decay_shape": "sqrt"}, "means nothing to schedule cosine, only to wsd: leave it out"),
        ({"schedule": "wdd"}, "training.schedule: must be 'constant', 'cosine', 'wsd' or 'inverse_sqrt', not 'wdd'"),
    ],
)
def test_what_does_not_go_together_is_one_line(tmp_path, training, message):
    with refused(message):
        load(tmp_path, **training)


CONTEXT = 64


def batch(rows: int, processes: int, micro_rows: int | None = None):
    training = Training(
        batch_tokens=rows * CONTEXT, micro_batch_tokens=None if micro_rows is None else micro_rows * CONTEXT
    )
    return split_batch(training, CONTEXT, processes)


def test_split():
    result = batch(12, 2, 4)
    assert (result.process_rows, result.micro_rows, result.passes, result.is_even) == (6, 4, 2, False), "half a pass"
    result = batch(8, 4, 4)
    assert (result.process_rows, result.micro_rows, result.passes, result.is_even) == (2, 2, 1, True), "all it has"
    assert batch(2, 3).process_rows == 1 and not batch(2, 3).is_even, "a process without work"


def test_less_than_one_sequence_is_not_even():
    assert not split_batch(Training(batch_tokens=256, micro_batch_tokens=32), CONTEXT, 1).is_even


def test_even_means_whole_micro_batches_for_every_process():
    for rows in range(1, 25):
        for processes in range(1, 9):
            for micro in (None, 1, 2, 3, 4, 6):
                result = batch(rows, processes, micro)
                whole = rows % processes == 0 and (rows // processes) % result.micro_rows == 0
                assert result.is_even == whole
                assert result.passes * result.micro_rows >= result.process_rows
