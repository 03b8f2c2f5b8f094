"""Two checkpoints on the same held-out windows: by how much one has the lower loss, and how well that is known.

Most of what makes a window's loss large or small is its text, which both models read. The difference window by window
drops it, so its standard error is far below that of the two losses taken apart. Windows that share a document are not
independent: the variance sums the products of the residuals of all pairs of windows that share one (Conley 1999, with
the uniform kernel), divided by what such a sum loses to the subtracted mean.

This is the error from having these documents and no others. It holds for these two checkpoints; what another seed of
the training would change is not in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from arch.errors import InputError
from data.corpus import Corpus, open_corpus
from data.files import read_json
from data.windows import unpacked, window_starts

LEAST = 5.0  # independent groups of windows (`n_effective`) below which no standard error is given


@dataclass(frozen=True, eq=False)
class HeldOut:
    """A checkpoint's held-out loss by window; `corpus`: the fingerprint of the corpus that the windows lie in."""

    name: str
    losses: np.ndarray  # [n_windows], nats a token, or an example, the mean over each
    window_tokens: int
    corpus: str

    @property
    def loss(self) -> float:
        return float(self.losses.mean())


@dataclass(frozen=True)
class Difference:
    """`value`: mean held-out loss of the first checkpoint less that of the second, nats a token or an
    example.

    se: its standard error, windows paired and clustered by document; None where n_effective, to how many independent
    windows the clusters amount, is below 5.
    """

    value: float
    se: float | None
    n_effective: float

    def interval(self, level: float = 0.95) -> tuple[float, float] | None:
        """By Student's t with n_effective - 1 degrees of freedom; None where there is no standard error."""
        if self.se is None:
            return None
        half = float(stats.t.ppf((1 + level) / 2, self.n_effective - 1)) * self.se
        return self.value - half, self.value + half


def load_held_out(study_dir: Path | str, run_id: str, step: int | None = None) -> HeldOut:
    """The windows of a checkpoint (None: the run's last one evaluated). Raises InputError where it was not evaluated or
    its result holds no windows: it is of an earlier version, or the loss is not finite."""
    folder = Path(study_dir) / "runs" / run_id / "evals"
    paths = sorted(folder.glob("[0-9]*/validation.json" if step is None else f"{step:08d}/validation.json"))
    again = "`scaling eval study STUDY --tasks validation` evaluates it"
    if not paths:
        name = run_id if step is None else f"{run_id}/{step:08d}"
        raise InputError(f"{name}: no held-out loss is stored in {folder}; {again}")
    path, name = paths[-1], f"{run_id}/{paths[-1].parent.name}"
    try:
        result = read_json(path)
        values = result["values"]
        if "window_nats" not in values:
            why = values.get("reason") or f"it is of version {result.get('version')} of the evaluation"
            raise InputError(f"{name}: its held-out loss holds no windows ({why}); {again} again")
        nats = unpacked(values["window_nats"])
        if len(nats) != values["n_windows"] or not np.isfinite(nats).all():
            raise ValueError("its windows are not those that it counts")
        losses = nats * len(nats) / values["n_tokens_scored"]
        return HeldOut(name, losses, int(values["context_length"]), str(result["data_hash"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); {again} again") from None


def documents_of(study_dir: Path | str, held_out: HeldOut) -> np.ndarray:
    """`spans_of` its windows. Raises InputError where the study's corpus is another than the one that was scored."""
    corpus = open_corpus(Path(study_dir) / "corpus")
    if corpus.fingerprint != held_out.corpus:
        raise InputError(
            f"{held_out.name}: was scored on corpus {held_out.corpus[:12]}, the study's is {corpus.fingerprint[:12]}"
        )
    return spans_of(corpus, held_out.window_tokens, len(held_out.losses) * held_out.window_tokens)


def spans_of(corpus: Corpus, length: int, n_tokens: int) -> np.ndarray:
    """int64 [n_windows, 2]: the first and the last document of each held-out window's scored tokens, by their number in
    the split. n_tokens: of all windows, `length` tokens each, as evaluation.validation_tokens."""
    starts = window_starts(corpus.parts("validation"), length, n_tokens)
    documents = corpus.document_starts("validation")
    ends = np.stack([starts + 1, starts + length], axis=1)
    return np.searchsorted(documents, ends, side="right").astype(np.int64) - 1


def compare_held_out(study_dir: Path | str, first: HeldOut, second: HeldOut) -> Difference:
    """`paired_difference` with the documents of the study's corpus."""
    return paired_difference(first, second, documents_of(study_dir, first))


def paired_difference(first: HeldOut, second: HeldOut, documents: np.ndarray) -> Difference:
    """The difference of two checkpoints' held-out losses with its standard errors; documents: of `documents_of`.
    Raises InputError where the two were not scored on the same windows."""
    for what, *values in (
        ("corpora", first.corpus[:12], second.corpus[:12]),
        ("window lengths", first.window_tokens, second.window_tokens),
        ("numbers of windows", len(first.losses), len(second.losses)),
    ):
        if values[0] != values[1]:
            raise InputError(
                f"{first.name} and {second.name} were scored on other windows ({what} {values[0]} and {values[1]}): a "
                f"paired difference needs the same corpus, context length and evaluation.validation_tokens"
            )
    apart = first.losses - second.losses
    n_effective = independent(documents)
    se = standard_error(apart, documents) if n_effective >= LEAST else None
    return Difference(float(apart.mean()), se, n_effective)


def independent(spans: np.ndarray) -> float:
    """To how many independent windows those of the documents `spans` [n, 2] amount."""
    return len(spans) / clustered_sum(np.ones(len(spans)), spans) * len(spans)


def standard_error(values: np.ndarray, documents: np.ndarray) -> float:
    """Of the mean of `values` [n] over windows of `documents` [n, 2]; never below that of independent windows, since
    the sum over pairs may come out too small by chance."""
    n = len(values)
    residuals = values - values.mean()
    share = clustered_sum(np.ones(n), documents) / n**2
    clustered = clustered_sum(residuals, documents) / n**2 / (1 - share) if share < 1 else 0.0
    return float(np.sqrt(max(clustered, residuals @ residuals / n / (n - 1))))


def clustered_sum(values: np.ndarray, documents: np.ndarray) -> float:
    """Sum of v_i v_j over all pairs of windows, each with itself too, that share a document."""
    end = np.searchsorted(documents[:, 0], documents[:, 1], side="right")  # both columns rise along the split
    total = np.concatenate([[0.0], np.cumsum(values)])
    return float(values @ values + 2 * (values * (total[end] - total[1:])).sum())
