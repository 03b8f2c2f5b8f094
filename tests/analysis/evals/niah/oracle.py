"""Models for the tests of retrieval: some that know what to do, through the interface of a language model."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from analysis.evals.model import LoadedModel
from arch.model.cache import DecodeCache
from arch.model.lm import Output, build_model
from arch.presets import preset
from data.tokenizer import Tokenizer, get_tokenizer

FACT = re.compile(r"The magic number of the (\w+) is #(\d+)\.")
MARK = b"Answer:"
ASKED = re.compile(r"What is the magic number of the (\w+)\?\nAnswer:$")


class Reader:
    """Remembers every byte and, once asked, spells what `answer(text so far)` gives, then a line's end.

    Its cache is a DecodeCache that holds the tokens themselves.
    """

    def __init__(self, config, tokenizer, answer):
        self.model_config, self.tokenizer, self.answer = config, tokenizer, answer
        self.n_tokens = 0

    def __call__(self, ids, cache=None, use_cache=True, logits_to_keep=1, attention_mask=None, backend=None):
        self.n_tokens += ids.numel()
        read = ids if cache is None else torch.cat([cache.layers[0]["tokens"], ids], 1)
        logits = torch.zeros(len(ids), 1, self.model_config.vocab_size)
        for row, tokens in enumerate(read.tolist()):
            logits[row, 0, self._next(tokens)] = 1.0
        seen = torch.full((len(ids),), read.shape[1])
        return Output(logits, cache=DecodeCache(self.model_config, seen, [{"tokens": read}], {}, read.shape[1]))

    def _next(self, tokens):
        read = self.tokenizer.decode_bytes(tokens)
        asked = read.rfind(MARK) + len(MARK) if MARK in read else len(read)
        wanted = self.answer(read[:asked].decode(errors="replace")).encode() + b"\n"
        return wanted[min(len(read) - asked, len(wanted) - 1)]


def copies_the_fact(text):
    """The number of the word asked for, from the text in front of the question; "nothing" where it is not there."""
    asked = ASKED.search(text)
    if asked is None:
        return ""
    known = dict(FACT.findall(text[: asked.start()]))
    return " " + known.get(asked[1], "nothing")


def loaded(model, config, tokenizer: Tokenizer | None = None) -> LoadedModel:
    return LoadedModel(
        model=model,
        config=config,
        tokenizer=tokenizer or get_tokenizer("bytes"),
        device="cpu",
        autocast=False,
        context_length=config.context_length,
        checkpoint=Path("nowhere"),
    )


def reader(answer, context_length=2048) -> LoadedModel:
    config = preset("tnl", "6k", context_length=context_length)
    return loaded(Reader(config, get_tokenizer("bytes"), answer), config)


def untrained(arch, context_length=2048) -> LoadedModel:
    config = preset(arch, "14k", context_length=context_length, init_std=0.4)
    return loaded(build_model(config, seed=1).double().eval(), config)
