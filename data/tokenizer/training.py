"""A byte-level BPE trained on text: Hugging Face's trainer finds the tokens, tiktoken uses them.

Its memory grows with the text's different words, about 30 bytes for each byte of bilingual text: so it reads a sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from arch.errors import InputError
from data.vocabulary import trained_ids

from .letters import spelt, written
from .ranks import PATTERN, RankTokenizer, trained_tokenizer

SAMPLE_BYTES = 16 << 20  # of text that a tokenizer is trained on at most,
SAMPLE_PER_ID = 1 << 10  # or so many for each of its ids, where that is more
PIECE = 2000  # characters that the trainer is given at a time: it holds many bytes for each
LEAST_COUNT = 2  # a pair seen once is no token


def sample_bytes(name: str) -> int:
    """How much text `bpe:V` is trained on at most."""
    return max(SAMPLE_BYTES, SAMPLE_PER_ID * trained_ids(name))


def train_tokenizer(name: str, texts: Iterable[str]) -> RankTokenizer:
    """`bpe:V` trained on `texts`: the same for the same texts, whatever the number of threads.

    Raises InputError where they have fewer than V - 257 pairs that occur twice.
    """
    from tokenizers import Regex, models, pre_tokenizers, trainers
    from tokenizers import Tokenizer as Trainee

    from .patterns import oniguruma

    wanted = trained_ids(name) - 1
    trainee = Trainee(models.BPE())
    words = pre_tokenizers.Split(Regex(oniguruma(name, PATTERN)), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainee.pre_tokenizer = pre_tokenizers.Sequence([words, byte_level])
    trainer = trainers.BpeTrainer(
        vocab_size=wanted,
        min_frequency=LEAST_COUNT,
        show_progress=False,
        special_tokens=[],
        initial_alphabet=[written(bytes([byte])) for byte in range(256)],
    )
    trainee.train_from_iterator(_pieces(texts), trainer)
    by_rank = sorted((rank, spelt(token)) for token, rank in trainee.get_vocab().items())
    merged = [token for _, token in by_rank if len(token) > 1]
    if 256 + len(merged) < wanted:
        raise InputError(
            f"corpus.tokenizer: the training text yields {257 + len(merged):,} ids, and {name} needs "
            f"{wanted + 1:,}: set bpe:{257 + len(merged)} or fewer, or give more text"
        )
    tokens = [*(bytes([byte]) for byte in range(256)), *merged]
    return trained_tokenizer(name, {token: rank for rank, token in enumerate(tokens)})


def _pieces(texts: Iterable[str]) -> Iterator[str]:
    """Lines, those that are long cut."""
    for text in texts:
        for line in text.splitlines(keepends=True):
            for start in range(0, len(line), PIECE):
                yield line[start : start + PIECE]
