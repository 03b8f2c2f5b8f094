"""Seeded text with something to learn, the same bytes on every machine and Python version: integers only, no `random`.

Words of an invented vocabulary follow an order-2 Markov chain (each pair of words allows four successors, with odds
8:4:2:2), inside brackets of three kinds that nest and close in the right order. A bigram model learns the spelling, a
longer context the chain, a memory the brackets.
"""

from __future__ import annotations

from collections.abc import Iterator

MASK = (1 << 64) - 1
N_WORDS = 32
WORDS_PER_DOCUMENT = 400
MAX_DEPTH = 4
BRACKETS = ("()", "[]", "{}")
SYLLABLES = tuple(c + v for c in "bdgklmnprstvz" for v in "aeiou")


def mix64(x: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea & Flood 2014): a bijection of 64-bit integers that scatters them."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def vocabulary(seed: int) -> list[str]:
    """`N_WORDS` different words of one to three syllables."""
    words: list[str] = []
    state = mix64(seed)
    while len(words) < N_WORDS:
        state = mix64(state)
        word = "".join(SYLLABLES[(state >> (8 * i)) % len(SYLLABLES)] for i in range(1 + (state >> 60) % 3))
        if word not in words:
            words.append(word)
    return words


def synthetic_documents(seed: int, n_bytes: int) -> Iterator[str]:
    """Documents of about 2 KB, `n_bytes` ASCII bytes in all (the last one is cut).

    Document i depends on (seed, i) alone: a longer text starts with the shorter one.
    """
    words = vocabulary(seed)
    index = 0
    while n_bytes > 0:
        text = _document(seed, index, words)[:n_bytes]
        n_bytes -= len(text)
        index += 1
        yield text


def _document(seed: int, index: int, words: list[str]) -> str:
    chain = mix64(mix64(seed))
    state = mix64(mix64(seed) ^ index)
    before, last = state % N_WORDS, (state >> 8) % N_WORDS
    parts: list[str] = []
    open_brackets: list[str] = []
    for _ in range(WORDS_PER_DOCUMENT):
        state = mix64(state)
        draw = state & 15
        choice = 0 if draw < 8 else 1 if draw < 12 else 2 if draw < 14 else 3
        successor = (mix64(chain ^ (before * N_WORDS + last)) >> (16 * choice)) % N_WORDS
        before, last = last, successor
        event = (state >> 8) & 31
        if event < 3 and len(open_brackets) < MAX_DEPTH:
            bracket = BRACKETS[event]
            open_brackets.append(bracket[1])
            parts.append(f" {bracket[0]}{words[last]}")
        elif event < 7 and open_brackets:
            parts.append(f" {words[last]}{open_brackets.pop()}")
        elif event < 9:
            parts.append(f" {words[last]}.")
        else:
            parts.append(f" {words[last]}")
    return "".join(parts).lstrip() + "".join(reversed(open_brackets)) + ".\n"
