"""MinHash signatures, cut into bands: documents with a band in common may be alike (Broder, 1997; Leskovec, Rajaraman
and Ullman, Mining of Massive Datasets, chapter 3).

Two sets of hashes with Jaccard similarity J (shared elements over all elements of both) have the same smallest element
under a random order with probability J. A signature holds the smallest elements under n_bands * rows orders; two
documents share a band where all its `rows` agree, and some band with probability 1 - (1 - J^rows)^n_bands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from data.clean.ngrams import mixed

MISSED = 1e-3  # share of pairs at exactly the similarity that have no band in common
MOST_HASHES = 128
ROWS_AT_ONCE = 512  # n-grams hashed at a time: what is in work stays in a core's cache


@dataclass(frozen=True)
class Bands:
    n_bands: int
    rows: int

    def of(self, ngrams: np.ndarray) -> np.ndarray:
        """uint64 [n_bands] of a document's n-gram hashes (uint64 [n >= 1]): a hash of each band of its signature."""
        factors = _factors(self.n_bands * self.rows)
        values = (ngrams >> np.uint64(32)).astype(np.uint32)
        smallest = np.full(len(factors), np.iinfo(np.uint32).max, np.uint32)
        for start in range(0, len(values), ROWS_AT_ONCE):
            here = np.multiply.outer(values[start : start + ROWS_AT_ONCE], factors)  # modulo 2^32
            np.minimum(smallest, here.min(axis=0), out=smallest)
        bands = np.zeros(self.n_bands, np.uint64)
        for row in smallest.reshape(self.n_bands, self.rows).T:
            bands = mixed(bands + row)
        return bands


def bands_for(similarity: float) -> Bands:
    """The bands of most rows, which make the fewest documents look alike that are not, by which no more than MISSED of
    the pairs of this similarity escape."""
    for rows in range(16, 1, -1):
        n_bands = 1 if similarity >= 1 else math.ceil(math.log(MISSED) / math.log1p(-(similarity**rows)))
        if n_bands * rows <= MOST_HASHES:
            return Bands(n_bands, rows)
    return Bands(MOST_HASHES, 1)


@cache
def _factors(n: int) -> np.ndarray:
    """uint32 [n], odd, so that each multiplies 32 bits into another order; the first bits of splitmix64's sequence."""
    return (mixed(np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)).astype(
        np.uint32
    ) | np.uint32(1)
