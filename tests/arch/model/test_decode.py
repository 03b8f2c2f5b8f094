"""Decoding with a state: the same tokens as reading everything again at each step."""

import pytest
import torch

from arch.config import ARCHS
from arch.errors import InputError
from arch.model.cache import DecodeCache
from arch.model.decode import choose, generate_tokens
from arch.model.lm import build_model
from arch.presets import preset
from flops.state import decode_state

STEPS = [150, pytest.param(2000, marks=pytest.mark.slow)]


def model_of(arch, dtype=torch.float64, **changes):
    """A head of its own and init_std 0.15: an untrained model whose tokens do not repeat at once."""
    config = preset(arch, "14k", init_std=0.15, tie_embeddings=False, **changes)
    return build_model(config, seed=3).to(dtype).eval()


def prompt(rows=1, length=9, seed=0):
    return torch.randint(0, 257, (rows, length), generator=torch.Generator().manual_seed(seed))


def generated(model, ids, n_new, **options):
    return torch.stack(list(generate_tokens(model, ids, n_new, **options)), 1)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("arch", ARCHS)
def test_greedy_is_the_argmax_of_full_passes(arch):
    model, ids = model_of(arch), prompt(rows=3)
    tokens = generated(model, ids, 12)
    for step in range(12):
        with torch.no_grad():
            assert torch.equal(model(ids).logits[:, -1].argmax(-1), tokens[:, step])
        ids = torch.cat([ids, tokens[:, step : step + 1]], 1)


@pytest.mark.parametrize("arch", ARCHS)
def test_decoding_goes_on_from_states_joined_to_a_batch(arch):
    """Two rows that read their beginnings apart, joined, against both read whole."""
    model, ids = model_of(arch), prompt(rows=2, length=20)
    with torch.inference_mode():
        apart = [model(row[None, :14], use_cache=True).cache for row in ids]
    joined = DecodeCache.concat(apart)
    for row, cache in enumerate(apart):
        for actual, expected in zip(joined.select(torch.tensor([row])).tensors(), cache.tensors(), strict=True):
            assert torch.equal(actual, expected)
    assert torch.equal(generated(model, ids[:, 14:], 8, cache=joined), generated(model, ids, 8))


def test_states_that_are_no_batch():
    model, other = model_of("llama"), model_of("tnl")
    with torch.inference_mode():
        short, long = (model(prompt(length=n), use_cache=True).cache for n in (3, 4))
        masked = model(prompt(), attention_mask=torch.tensor([[0] + [1] * 8]), use_cache=True).cache
        strange = other(prompt(), use_cache=True).cache
    for states, message in (
        ([short, long], "3, 4"),
        ([masked, masked], "padding"),
        ([short, strange], "another model"),
    ):
        with pytest.raises(InputError, match=message):
            DecodeCache.concat(states)


@pytest.mark.parametrize("n_steps", STEPS)
@pytest.mark.parametrize("arch", ARCHS)
def test_steps_in_fp32(arch, n_steps):
    """Logits of a state that read many tokens one by one, to 1e-4, the same likeliest token wherever it is one. The
    state has the size that flops says."""
    model, ids = model_of(arch, torch.float32), prompt(length=n_steps)
    cache, logits = None, []
    with torch.inference_mode():
        for token in ids.unbind(1):
            output = model(token[:, None], cache=cache, use_cache=True, backend="naive")
            cache = output.cache
            logits.append(output.logits[0])
            if len(logits) in (10, n_steps):
                assert cache.n_bytes == decode_state(model.model_config, len(logits))["bytes"]
        actual, expected = torch.cat(logits), model(ids).logits[0]
    assert (actual - expected).abs().max() < 1e-4
    best = expected.topk(2, -1).values
    clear = best[:, 0] - best[:, 1] > 1e-3
    assert clear.sum() > 0.9 * n_steps and torch.equal(actual.argmax(-1)[clear], expected.argmax(-1)[clear])


@pytest.mark.parametrize("arch, changes", [*((arch, {}) for arch in ARCHS), ("transformer", {"window": 5})])
def test_a_state_keeps_little_more_than_itself_in_memory(arch, changes):
    """Views of a whole prompt would keep all of it."""
    model = model_of(arch, **changes)
    with torch.inference_mode():
        cache = model(prompt(length=200), use_cache=True).cache
    for tensor in cache.tensors():
        assert tensor.untyped_storage().nbytes() <= 2 * tensor.nbytes


@pytest.mark.parametrize("arch", ARCHS)
def test_left_padded_rows_are_the_single_rows(arch):
    model = model_of(arch)
    rows = [prompt(length=n, seed=n) for n in (3, 9, 6)]
    ids = torch.cat([torch.nn.functional.pad(row, (9 - row.shape[1], 0), value=7) for row in rows])
    mask = torch.cat([torch.nn.functional.pad(torch.ones_like(row), (9 - row.shape[1], 0)) for row in rows])
    together = generated(model, ids, 20, attention_mask=mask)
    assert torch.equal(together, torch.cat([generated(model, row, 20) for row in rows]))


def test_the_draws_are_those_of_the_softmax_and_follow_from_the_seed():
    model, ids = model_of("tnl"), prompt(rows=2)
    first, again, other = (generated(model, ids, 15, seed=seed, temperature=1.3, top_k=50) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]])
    temperature = 0.7
    draws = choose(logits.expand(20_000, -1), temperature, 0, 1.0, generator())
    shares = torch.bincount(draws, minlength=4) / len(draws)
    torch.testing.assert_close(shares, (logits[0] / temperature).softmax(-1), atol=0.015, rtol=0)


@pytest.mark.parametrize(
    ("top_k", "top_p", "support"),
    [
        (0, 1.0, {0, 1, 2, 3}),
        (1, 1.0, {2}),
        (2, 1.0, {1, 2}),
        (9, 1.0, {0, 1, 2, 3}),
        (0, 0.39, {2}),  # shares 0.4, 0.3, 0.2, 0.1
        (0, 0.41, {1, 2}),
        (0, 0.75, {0, 1, 2}),
        (2, 0.55, {2}),  # 0.4 / 0.7 of what top_k leaves
        (0, 1e-9, {2}),
    ],
)
def test_top_k_and_top_p_restrict_the_support(top_k, top_p, support):
    assert len(choose(torch.zeros(500, 6), 1.0, 3, 1.0, generator()).unique()) == 3  # of equal ones
    logits = torch.tensor([0.2, 0.3, 0.4, 0.1]).log().expand(3000, -1)
    assert set(choose(logits, 1.0, top_k, top_p, generator()).tolist()) == support


@pytest.mark.parametrize("temperature", [1e-300, 1e-6])
def test_a_tiny_temperature_is_greedy(temperature):
    logits = torch.randn(5, 40, generator=generator())
    assert torch.equal(choose(logits, temperature, 0, 1.0, generator()), logits.argmax(-1))


def test_rows_that_ended_stay_there():
    model, ids = model_of("hgrn2"), prompt(rows=4)
    free = generated(model, ids, 30)
    eos = int(free[0, 4])
    ended = generated(model, ids, 30, eos_id=eos)
    for row, expected in zip(ended, free, strict=True):
        ends = (expected == eos).nonzero()
        first = int(ends[0]) if len(ends) else 30
        assert torch.equal(row[:first], expected[: len(row)][:first]) and (row[first:] == eos).all()
    alone = generated(model, ids[:1], 30, eos_id=eos)
    assert alone[0].tolist() == free[0, : alone.shape[1]].tolist() and alone[0, -1] == eos
    assert alone.shape[1] == int((free[0] == eos).nonzero()[0]) + 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_new": 0}, "n_new"),
        ({"n_new": 2.0}, "n_new"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"seed": -1}, "seed"),
        ({"seed": 1 << 63}, "seed"),
        ({"eos_id": 257}, "outside the vocabulary"),
        ({"input_ids": torch.zeros(1, 0, dtype=torch.int64)}, "at least one token"),
        ({"input_ids": torch.tensor([[1, 257]])}, "outside the vocabulary"),
        ({"attention_mask": torch.tensor([[1, 0]])}, "left"),
    ],
)
def test_bad_values(options, message):
    values = {"input_ids": torch.tensor([[1, 2]]), "n_new": 3} | options
    with pytest.raises(InputError, match=message) as error:
        list(generate_tokens(model_of("llama"), values.pop("input_ids"), values.pop("n_new"), **values))
    assert "\n" not in str(error.value)


def test_a_damaged_model_is_refused():
    model = model_of("tnl")
    with torch.no_grad():
        model.decoder.embedding.weight[5] = float("nan")
    with pytest.raises(InputError, match="not finite"):
        next(generate_tokens(model, torch.tensor([[1, 5]]), 3))
