"""The entropy rate of a corpus all of whose text has a known one: for its manifest, and for plans."""

from __future__ import annotations

import math
from typing import Any

from data.settings import CorpusSettings
from data.sources.made import Made
from data.sources.schemes import find
from data.units import loss_unit
from data.vocabulary import BYTES


def entropy_rate(settings: CorpusSettings, streams: list[dict[str, Any]] | None = None) -> dict[str, float] | None:
    """{"nats_per_token", "bits_per_byte"} of a corpus; None unless each of its streams is one source of known truth.

    Both count where documents end, and an end-of-text token as a token of no bytes. Of a mixture they are those of the
    text that runs train on, by its weights.
    `streams`: what the manifest says of each. Without it (of a plan) it is None for another tokenizer than bytes, where
    only the corpus says how many bytes a token has.
    """
    nats = n_bytes = 0.0  # of one token in the mean
    weights = math.fsum(stream.weight for stream in settings.streams)
    for i, stream in enumerate(settings.streams):
        source = find(stream.source[0]) if len(stream.source) == 1 else None
        if not isinstance(source, Made) or source.truth is None:
            return None
        rate = source.truth.rate
        bytes_per_token = rate.n_bytes / (rate.n_bytes + 1)
        if settings.tokenizer != BYTES:
            if streams is None:
                return None
            train = streams[i]["splits"]["train"]
            bytes_per_token = train["bytes"] / train["tokens"]
        share = stream.weight / weights
        n_bytes += share * bytes_per_token
        nats += share * bytes_per_token * rate.nats / rate.n_bytes
    return {"nats_per_token": nats, "bits_per_byte": nats / n_bytes / math.log(2)}


def rate_lines(rate: dict[str, float] | None, tokenizer: str) -> list[str]:
    """A line on it, of the tokenizer's tokens; none where it is not known."""
    if rate is None:
        return []
    return [
        f"entropy rate of the text, by its source: {rate['nats_per_token']:.4f} {loss_unit([tokenizer])}, ends of "
        f"documents counted; {rate['bits_per_byte']:.4f} bits/byte"
    ]
