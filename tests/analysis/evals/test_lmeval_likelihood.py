"""Log-likelihoods in our batches against lm-eval's own loop over requests, to the last digit."""

import random

import pytest
import torch
from lm_eval.models.huggingface import HFLM

from analysis.evals.lmeval.adapter import CountingLM, hf_model, hf_tokenizer
from analysis.evals.lmeval.likelihood import likelihoods
from arch.lm import build_model
from arch.presets import preset

WINDOW = 96


def requests(n: int) -> list[tuple[tuple[str, str], list[int], list[int]]]:
    """Of all lengths, cut ones among them; every third has the context of the one before and one token to go."""
    draw = random.Random(0)
    found: list[tuple[tuple[str, str], list[int], list[int]]] = []
    for i in range(n):
        context = [draw.randrange(257) for _ in range(draw.choice([1, 7, 40, WINDOW, 150]))]
        continuation = [draw.randrange(257) for _ in range(draw.choice([1, 2, 30, WINDOW]))]
        if i % 3 == 2:
            context, continuation = found[-1][1], [draw.randrange(257)]
        elif i % 3 == 1:
            continuation = continuation[:1]
        found.append(((f"{i}", ""), context, continuation))
    return found


@pytest.fixture(scope="module", params=["llama", "hgrn2"])
def lm(request: pytest.FixtureRequest) -> CountingLM:
    config = preset(request.param, "14k", vocab_size=257, context_length=WINDOW, init_std=0.3)
    model = build_model(config, seed=2).eval()
    return CountingLM(hf_model(model), hf_tokenizer("bytes"), WINDOW, 4, lambda share, text: None, {}, 8)


def test_every_number_is_lm_evals(lm: CountingLM) -> None:
    asked = requests(40)
    expected = HFLM._loglikelihood_tokens(lm, asked, disable_tqdm=True)
    assert likelihoods(lm, asked) == expected
    assert len(set(expected)) > 30 and any(len(one[1]) + len(one[2]) > WINDOW + 1 for one in asked)


def test_greedy_continuations_are_known_as_such(lm: CountingLM) -> None:
    context = list(range(40))
    best: list[int] = []
    for _ in range(6):
        best.append(int(lm._model_call(torch.tensor([context + best]))[0, -1].argmax()))
    for i in range(6):
        changed = [*best[:i], (best[i] + 1) % 257, *best[i + 1 :]]
        # another row, longer, so that these are padded
        found = likelihoods(lm, [(None, context, best), (None, context, changed), (None, context, [1] * 30)])
        assert [greedy for _, greedy in found] == [True, False, False]


def test_what_cannot_be_read_is_refused(lm: CountingLM) -> None:
    for context, continuation in (([], [1]), ([1], []), ([1], [2] * (WINDOW + 1))):
        with pytest.raises(AssertionError):
            likelihoods(lm, [(None, context, continuation)])
