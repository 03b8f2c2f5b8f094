"""Sources of known truth by name: `<scheme>:<seed>:<n_bytes>[:<number> ...]`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from arch.errors import InputError
from data.truth.markov import Markov
from data.truth.memory import Copying, Recall
from data.truth.powerlaw import PowerLaw
from data.truth.rate import EntropyRate

Number = type[int] | type[float]


class Truth(Protocol):
    """Seeded documents, each drawn on its own, and the entropy rate that they have in the mean."""

    @property
    def rate(self) -> EntropyRate: ...

    def document(self, index: int) -> str: ...


@dataclass(frozen=True)
class Scheme:
    """How a source is made of its seed and of the numbers that may follow the size, each of a type and a name."""

    make: Callable[..., Truth]
    numbers: tuple[tuple[str, Number], ...]


SCHEMES: dict[str, Scheme] = {
    "powerlaw": Scheme(PowerLaw, (("zipf", float),)),
    "markov": Scheme(Markov, (("order", int), ("letters", int))),
    "copy": Scheme(Copying, (("letters", int),)),
    "mqar": Scheme(Recall, (("pairs", int),)),
}


@dataclass(frozen=True)
class TrueText:
    """`n_bytes` of a source: its documents in order, the last one cut."""

    truth: Truth
    n_bytes: int

    def documents(self) -> Iterator[str]:
        """A longer text begins with the shorter one, but for the document that is cut."""
        left, index = self.n_bytes, 0
        while left > 0:
            text = self.truth.document(index)[:left]  # ASCII: characters are bytes
            left -= len(text)
            index += 1
            yield text


def true_text(source: str) -> TrueText:
    """The text that `source`, of a scheme here, names.

    Raises InputError: numbers that are missing, no numbers or out of range.
    """
    name, _, rest = source.partition(":")
    scheme = SCHEMES[name]
    parts = rest.split(":")
    usage = f"{name}:<seed>:<n_bytes>" + "".join(f"[:<{number}>]" for number, _ in scheme.numbers)
    try:
        seed, n_bytes = int(parts[0]), int(parts[1])
        more = {key: kind(part) for (key, kind), part in zip(scheme.numbers, parts[2:], strict=False)}
    except (IndexError, ValueError):
        raise InputError(f"corpus.source: {source!r} is not {usage!r}, in numbers") from None
    if seed < 0 or n_bytes <= 0 or len(parts) > 2 + len(scheme.numbers):
        raise InputError(f"corpus.source: {source!r} is not {usage!r} with a seed from 0 and n_bytes > 0")
    try:
        return TrueText(scheme.make(seed, **more), n_bytes)
    except InputError as error:
        raise InputError(f"corpus.source: {source!r}: {error}") from None
