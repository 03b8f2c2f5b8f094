"""The first stage of a study: its corpus, made where it is missing, and large enough for the chosen runs."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING

from arch.amounts import byte_size, counted
from arch.errors import InputError
from data.checks import check_text, check_tokenizer, existing_corpus, sizes_of
from data.clean.summary import examples, headline
from data.corpus import check_at_hand, prepare
from data.enough import require_tokens
from data.manifest import CUT, skipped_of
from data.mixture import Part, epochs_of, short_of
from data.settings import CorpusSettings, shown_source
from data.source_record import is_touched
from data.truth.corpus_rate import rate_lines
from data.windows import window_starts

from ..rundir.worklist import is_trained
from .passing import Passing
from .request import Request

if TYPE_CHECKING:
    from data.corpus import Corpus

    from ..study.run import RunSpec

NOT_READY = "no run can begin"
FEW_DOCUMENTS = 5  # held out: fewer say little about other text
UNKNOWN = 1 << 62  # tokens of text whose size is not known


def data_stage(request: Request, text: bool = True) -> Corpus:
    """The corpus, made where it is missing, and large enough for every chosen run and its evaluation.

    text: whether it is read; where a bundle left it out it is made again then."""
    settings = request.study.corpus.settings()
    try:
        with Passing(request.stream) as passing:

            def progress(done: int, total: int | None, message: str) -> None:
                share = f"{done / total:.0%}" if total else byte_size(done)
                passing.show(f"corpus: {share} read, {message}")

            corpus = prepare(settings, request.corpus_directory, progress, text=text)
        _require_enough(request, corpus)
    except InputError as error:
        raise InputError(f"{request.study.origin}: {error}") from None
    for line in _described(request, corpus):
        request.say(line)
    made_of = corpus.manifest["settings"]["source"]
    if not settings.labelled and made_of != settings.to_dict()["source"]:
        request.say(f"corpus: made of {shown_source(made_of)}; {shown_source(settings.source)} holds the same text")
    for line in _warnings(request, corpus):
        request.say(f"warning: {line}")
    return corpus


def _described(request: Request, corpus: Corpus) -> Iterator[str]:
    """Sizes, what was left out and the fingerprint; each source of a mixture; what cleaning dropped; an entropy."""
    manifest = corpus.manifest
    splits, counts = manifest["splits"], manifest["counts"]
    left_out = skipped_of(counts)
    if (shared := manifest.get("shared", {})) and shared["tokens"]:
        left_out.append(f"{shared['tokens']:,} held-out tokens that training text holds too")
    n_held_out = splits["validation"]["documents"]
    few = f"; only {counted(n_held_out, 'document')} held out, so the held-out loss says little about other text"
    yield (
        f"corpus: {counted(counts['documents'], 'document')}, {splits['train']['tokens']:,} tokens to train on, "
        f"{splits['validation']['tokens']:,} held out"
        + (f" (left out: {', '.join(left_out)})" if left_out else "")
        + (f"; {counts[CUT]:,} ends of documents inside a line" if counts.get(CUT) else "")
        + f"; {corpus.fingerprint[:16]}"
        + (few if n_held_out < FEW_DOCUMENTS else "")
        + ("; without its text" if corpus.is_left_out else "")
    )
    parts = corpus.parts("train")
    if parts[0].name and request.runs:
        read = [epochs_of(parts, *_read_by(run)) for run in request.runs]
        for part, held_out in zip(parts, corpus.parts("validation"), strict=True):
            yield (
                f"source {part.name}: weight {part.weight:g}, {part.n_tokens:,} tokens to train on, read at most "
                f"{max(times[part.name] for times in read):.3g} times by a run; {held_out.n_tokens:,} held out"
            )
    for entry in manifest.get("cleaning", []):
        yield f"cleaning: {headline(entry)}"
        yield from (f"  {example}" for example in examples(entry))
    yield from rate_lines(manifest.get("entropy_rate"), manifest["tokenizer"]["name"])


def _read_by(run: RunSpec) -> tuple[int, int, int, Fraction]:
    """What data.mixture asks about a run: its tokens, context, rows of a batch, share of the text."""
    return run.n_tokens, run.context_length, run.training.batch_tokens // run.context_length, run.text_share


def _warnings(request: Request, corpus: Corpus) -> Iterator[str]:
    if corpus.damaged:
        yield f"the corpus was damaged ({corpus.damaged}) and has been made again"
    yield from corpus.warnings
    evaluation = request.study.evaluation
    if "validation_tokens" in evaluation.model_fields_set:
        parts, asked = corpus.parts("validation"), evaluation.validation_tokens
        for length in sorted({run.context_length for run in request.runs}):
            read = len(window_starts(parts, length, asked)) * length
            if read + length <= asked:
                yield (
                    f"evaluation.validation_tokens asks for {asked:,} held-out tokens, and {read:,} of "
                    f"{corpus.n_tokens('validation'):,} can be evaluated in windows of {length:,}"
                )
                break
    followed = [run.rate.followed for run in request.runs if run.rate and run.rate.followed]
    swept = {law.corpus_fingerprint for law in followed} - {None, corpus.fingerprint}
    if swept:
        yield f"learning rates follow a law that was swept on another corpus ({', '.join(sorted(map(str, swept)))})"


def _require_enough(request: Request, corpus: Corpus) -> None:
    """Raise InputError where the corpus is too small for one of the runs or its held-out loss."""
    for run in request.runs:
        n_tokens, context, rows, share = _read_by(run)
        require_tokens(corpus, n_tokens, request.study.corpus.epochs, context, rows, share)
        window_starts(corpus.parts("validation"), context, request.study.evaluation.validation_tokens)


def reads_text(request: Request) -> bool:
    """Whether a chosen run is still to be trained."""
    runs = [(run, request.rundir(run)) for run in request.runs]
    return any(rundir.status()["state"] != "failed" and not is_trained(run, rundir) for run, rundir in runs)


def check_corpus(request: Request, data_later: bool = False) -> list[str]:
    """Raise InputError where `data_stage` would refuse, as far as that is known quickly and without writing: of a
    corpus that is there its size, of one that is not its text, its tokenizer and what its files can hold at most.

    data_later: that is no error, as of a study that is only planned. Returns lines about what is wrong, or may be.
    """
    settings, directory = request.study.corpus.settings(), request.corpus_directory
    try:
        corpus = existing_corpus(settings, directory)
        if corpus is None:
            lines = check_text(settings) + check_tokenizer(settings.tokenizer, fetch=not data_later)
            return lines + _too_little_text(request, settings)
        _require_enough(request, corpus)
        if corpus.is_left_out and reads_text(request):
            check_at_hand(settings, directory)
        if not corpus.is_left_out and is_touched(settings, directory):
            return [
                "corpus.source: its files have changed since the corpus was made, or are others: `scaling data` reads "
                "them, and refuses another text"
            ]
        return []
    except InputError as error:
        message = f"{request.study.origin}: {error}"
        if not data_later:
            raise InputError(message) from None
        return [f"{NOT_READY}: {message}"]


def _too_little_text(request: Request, settings: CorpusSettings) -> list[str]:
    """A line where the text is likely too small for the runs. Raises InputError where it certainly is."""
    sizes, epochs = sizes_of(settings), request.study.corpus.epochs
    most, likely = list[Part](), list[Part]()
    for stream in settings.streams:
        size, held_out = sizes[stream.name], stream.validation_tokens or 0
        if size is not None and held_out >= size.most:
            of = f" of source {stream.name}" if stream.name else ""
            raise InputError(
                f"corpus.validation_tokens: {held_out:,} tokens{of} are asked for, and the text holds at most "
                f"{size.most:,}: ask for fewer, or give more text"
            )
        most.append(Part(stream.name, stream.weight, 0, UNKNOWN if size is None else size.most))
        about = None if size is None else size.about
        if about is not None:
            about = max(0, round(about * (1 - (settings.validation_fraction or 0)) - held_out))
        likely.append(most[-1] if about is None else most[-1]._replace(n_tokens=about))
    shown = {stream.name: shown_source(stream.source) for stream in settings.streams}
    remedy, lines = "give more text, plan fewer tokens, or raise corpus.epochs", list[str]()
    for run in request.runs:
        n_tokens, context, rows, share = _read_by(run)
        for parts, words in ((most, "but {} holds at most {:,}"), (likely, "but the text probably has about {1:,}")):
            for part, _, needed, _ in short_of(parts, n_tokens, epochs, context, rows, share):
                needs, of = (needed * context, f" of source {part.name}") if part.name else (n_tokens, "")
                line = (
                    f"corpus.source: {run.run_id} plans to train on {needs:,} tokens{of} in at most {epochs:g} epochs, "
                    f"{words.format(shown[part.name], part.n_tokens)}: {remedy}"
                )
                if parts is most:
                    raise InputError(line)
                lines.append(line)
    return lines[:1]
