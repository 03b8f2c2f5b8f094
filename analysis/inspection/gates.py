"""What a model's layers keep and mix: statistics of the forget gates over real text, and their token-mixing matrices.

As HGRN's (Qin et al. 2023) table 12 (mean and median of the forget gate by layer), figure 3 (its distribution) and
figure 4 (the token-mixing matrix). A gate of f forgets over about 1 / (1 - f) tokens. Values are never kept: bins count
them as the text passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from arch.errors import InputError
from data.files import read_json
from data.sources.content import BOM

if TYPE_CHECKING:
    import torch

    from arch.model.lm import LanguageModel
    from arch.model.mixer import Mixer
    from data.tokenizer import Tokenizer

BINS = 10_000  # of the gate's value, so that a quantile is known to 1e-4
SHOWN_BINS = 50  # of the histogram that is stored and drawn
LONG = 0.99  # a gate above it remembers over more than 100 tokens
MATRIX_TOKENS = 128  # of the token-mixing matrix
BATCH_TOKENS = 8192  # read in one forward pass


@dataclass(frozen=True)
class GateStatistics:
    """One layer's forget gates: 5% and 95% quantiles (to 1e-4, as the median), share above LONG, number of values, and
    shares in SHOWN_BINS equal bins over [0, 1]."""

    mean: float
    median: float
    q05: float
    q95: float
    above_099: float
    n: int
    histogram: list[float]


@dataclass(frozen=True)
class Additive:
    """A softmax layer as an additive recurrence (Scaling Laws for Linear Complexity LMs, eq. 2). gates: s^(j-1) / s^j
    of the steps j = 2 .. t that each token t makes over its past; difference: the largest of its weights from those
    of the layer's attention."""

    gates: GateStatistics
    difference: float


@dataclass(frozen=True)
class Inspection:
    """A model's layers, in order: gate statistics (None: the architecture has no forget gate); `mixing_matrices` and
    `additive_recurrences` on the first tokens of the text."""

    arch: str
    run_id: str
    step: int
    source: str
    n_tokens: int
    gates: list[GateStatistics | None]
    mixing: dict[str, list[np.ndarray | None]]
    additive: list[Additive | None]

    def to_dict(self) -> dict[str, Any]:
        """Everything but the matrices, as plain data."""
        head = {key: getattr(self, key) for key in ("arch", "run_id", "step", "source", "n_tokens")}
        layers, additive = ([item and asdict(item) for item in items] for items in (self.gates, self.additive))
        return head | {"layers": layers, "softmax_as_recurrence": additive}


def inspect_checkpoint(checkpoint: Path, tokenizer: Tokenizer, source: Path, n_tokens: int) -> Inspection:
    """Inspect the intact checkpoint at `checkpoint` on about n_tokens of `source`: a text file, or a prepared corpus,
    whose held-out text is then read, evenly spread. On a GPU where the machine has one.

    Raises InputError where there is no such text, it is of another tokenizer, or has fewer than two tokens.
    """
    import torch

    from arch.model.lm import load_model

    manifest = read_json(checkpoint / "manifest.json")
    model = load_model(checkpoint).to("cuda" if torch.cuda.is_available() else "cpu").eval()
    rows = read_rows(source, tokenizer, model.model_config.context_length, n_tokens)
    return Inspection(
        arch=model.model_config.arch,
        run_id=str(manifest["run_id"]),
        step=int(manifest["step"]),
        source=str(source),
        n_tokens=rows.size,
        gates=gate_statistics(model, rows),
        mixing=mixing_matrices(model, rows[:1, :MATRIX_TOKENS]),
        additive=additive_recurrences(model, rows[:1, :MATRIX_TOKENS]),
    )


def read_rows(source: Path, tokenizer: Tokenizer, context_length: int, n_tokens: int) -> np.ndarray:
    """int64 [rows, at most context_length]: whole windows of `source`, or a single row of a text shorter than that."""
    from data.corpus import open_corpus
    from data.mixture import whole
    from data.windows import window_starts

    if source.is_dir():
        corpus = open_corpus(source)
        if corpus.tokenizer.identity != tokenizer.identity:
            raise InputError(
                f"{source}: the corpus is of tokenizer {corpus.tokenizer.name}, the checkpoint of {tokenizer.name}: "
                f"give a text with --text"
            )
        tokens, parts = corpus.validation, corpus.parts("validation")
    else:
        tokens = tokenizer.encode_array(_read_text(source))
        parts = whole(len(tokens))
    if len(tokens) < 2:
        raise InputError(f"{source}: holds fewer than two tokens; give another text with --text FILE")
    length = min(context_length, n_tokens, min(part.n_tokens for part in parts) - 1)
    starts = window_starts(parts, length, n_tokens)
    return np.stack([np.asarray(tokens[start : start + length], dtype=np.int64) for start in starts])


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().removeprefix(BOM).decode("utf-8")  # as a corpus is read: line ends stay
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such text or corpus; give a text with --text FILE") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not UTF-8 text; convert it first") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give another text with --text") from None


class Counter:
    """Gate values of one layer, counted in BINS bins over [0, 1]."""

    def __init__(self) -> None:
        self.bins = np.zeros(BINS, dtype=np.int64)
        self.total, self.above, self.low, self.high = 0.0, 0, 1.0, 0.0

    def add(self, gates: torch.Tensor) -> None:
        """Count gates of any shape, with values in [0, 1]."""
        import torch

        flat = gates.detach().flatten().float()
        index = (flat * BINS).long().clamp(max=BINS - 1)
        self.bins += torch.bincount(index, minlength=BINS).cpu().numpy()
        self.total += float(flat.double().sum())
        self.above += int((flat > LONG).sum())
        self.low, self.high = min(self.low, float(flat.min())), max(self.high, float(flat.max()))

    def quantile(self, share: float) -> float:
        """The quantile at `share`, linear within a bin and never outside of the values counted (exact where all gates
        are equal)."""
        below = np.concatenate([[0], self.bins.cumsum()])
        value = float(np.interp(share * below[-1], below, np.arange(BINS + 1) / BINS))
        return min(max(value, self.low), self.high)

    def statistics(self) -> GateStatistics:
        n = int(self.bins.sum())
        histogram = self.bins.reshape(SHOWN_BINS, -1).sum(1) / n
        return GateStatistics(
            mean=self.total / n,
            median=self.quantile(0.5),
            q05=self.quantile(0.05),
            q95=self.quantile(0.95),
            above_099=self.above / n,
            n=n,
            histogram=[float(share) for share in histogram],
        )


def gate_statistics(model: LanguageModel, rows: np.ndarray) -> list[GateStatistics | None]:
    """The gates of every layer over `rows`, int64 [rows, T]; None for layers that have none."""
    counters = [Counter() for _ in model.decoder.layers]

    def count(index: int, mixer: Mixer, x: torch.Tensor, stream: Any) -> None:
        gates = mixer.forget_gates(x, stream)
        if gates is not None:
            counters[index].add(gates)

    batch = max(1, BATCH_TOKENS // rows.shape[1])
    with watched(model, count) as read:
        for first in range(0, len(rows), batch):
            read(rows[first : first + batch])
    return [counter.statistics() if counter.bins.any() else None for counter in counters]


def mixing_matrices(model: LanguageModel, rows: np.ndarray) -> dict[str, list[np.ndarray | None]]:
    """Of every layer on one row, int64 [1, T], fp32 [T, T] each, None where its mixer gives none: `mixing`, mean
    magnitudes over heads of its token-mixing weights; `magnitudes` and `angles`, the factors of weights that rotate."""
    layers: dict[str, list[np.ndarray | None]] = {
        name: [None] * len(model.decoder.layers) for name in ("mixing", "magnitudes", "angles")
    }

    def keep(index: int, mixer: Mixer, x: torch.Tensor, stream: Any) -> None:
        weights, factors = mixer.token_mixing(x, stream), mixer.mixing_factors(x, stream)
        shown = {} if weights is None else {"mixing": weights.abs()}
        shown |= {} if factors is None else dict(zip(("magnitudes", "angles"), factors, strict=True))
        for name, matrices in shown.items():
            layers[name][index] = matrices[0].float().mean(0).cpu().numpy()

    with watched(model, keep) as read:
        read(rows)
    return layers


def additive_recurrences(model: LanguageModel, rows: np.ndarray) -> list[Additive | None]:
    """Of every softmax layer on one row, int64 [1, T], T > 1; None for others."""
    import torch

    layers: list[Additive | None] = [None] * len(model.decoder.layers)

    def compare(index: int, mixer: Mixer, x: torch.Tensor, stream: Any) -> None:
        weights, attended = mixer.additive_mixing(x, stream), mixer.token_mixing(x, stream)
        if weights is not None and attended is not None and len(weights[0, 0]) > 1:  # a single token makes no step
            read = weights.float().cumsum(-1)  # s^j / s^t
            steps = torch.ones(read.shape[-2:], dtype=torch.bool, device=read.device).tril()[:, 1:]
            counter = Counter()
            gates = (read[..., :-1] / read[..., 1:])[..., steps]
            counter.add(gates[gates.isfinite()])  # a step before all weights that fp32 holds has none
            layers[index] = Additive(counter.statistics(), float((weights - attended).abs().max()))

    with watched(model, compare) as read:
        read(rows)
    return layers


@contextmanager
def watched(model: LanguageModel, look: Any) -> Iterator[Any]:
    """A function that reads rows [B, T]. In every layer it calls look(layer, mixer, the mixer's input, its stream)."""
    import torch

    from arch.model.mixer import Mixer

    mixers = [module for module in model.modules() if isinstance(module, Mixer)]
    hooks = [
        mixer.register_forward_pre_hook(lambda module, args, index=index: look(index, module, *args[:2]))
        for index, mixer in enumerate(mixers)
    ]
    device = next(model.parameters()).device

    def read(rows: np.ndarray) -> None:
        with torch.inference_mode():
            model(torch.from_numpy(rows).to(device), logits_to_keep=1)

    try:
        yield read
    finally:
        for hook in hooks:
            hook.remove()
