"""The first stage of a study: its corpus, made where it is missing, and large enough for the chosen runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arch.amounts import byte_size, counted
from arch.errors import InputError
from data.settings import shown_source

from ..rundir.worklist import is_trained
from .passing import Passing
from .request import Request

if TYPE_CHECKING:
    from data.corpus import Corpus
    from data.settings import CorpusSettings

    from ..study.run import RunSpec

CUT = "cut_lines"  # of the counts: nothing is left out
FEW_DOCUMENTS = 5  # held out: fewer say little about other text


def data_stage(request: Request, text: bool = True) -> Corpus:
    """The corpus, made where it is missing, and large enough for every chosen run and its evaluation.

    text: whether it is read; where a bundle left it out it is made again then."""
    from data.corpus import prepare
    from data.truth.corpus_rate import rate_lines

    settings = request.study.corpus.settings()
    try:
        with Passing(request.stream) as passing:

            def progress(done: int, total: int | None, message: str) -> None:
                share = f"{done / total:.0%}" if total else byte_size(done)
                passing.tell(f"corpus: {share} read, {message}")

            corpus = prepare(settings, request.corpus_directory, progress, text=text)
        _require_enough(request, corpus)
    except InputError as error:
        raise InputError(f"{request.study.origin}: {error}") from None
    request.say(describe_corpus(corpus) + ("; without its text" if corpus.is_left_out else ""))
    if corpus.damaged:
        request.say(f"warning: the corpus was damaged ({corpus.damaged}) and has been made again")
    for line in [
        *_reads(request, corpus),
        *cleaning_lines(corpus.manifest),
        *rate_lines(corpus.manifest.get("entropy_rate"), corpus.manifest["tokenizer"]["name"]),
    ]:
        request.say(line)
    if (made_of := corpus.manifest["settings"]["source"]) != settings.to_dict()["source"]:
        request.say(f"corpus: made of {shown_source(made_of)}; {shown_source(settings.source)} holds the same text")
    for line in [*corpus.warnings, *_too_few(request, corpus), *_other_law(request, corpus)]:
        request.say(f"warning: {line}")
    return corpus


def _reads(request: Request, corpus: Corpus) -> list[str]:
    """A line for each source of a mixture: its tokens, and how often the longest runs read them."""
    from data.mixture import epochs_of

    parts, held_out = corpus.parts("train"), corpus.parts("validation")
    if not parts[0].name or not request.runs:
        return []
    read = []
    for run in request.runs:
        rows = run.training.batch_tokens // run.context_length
        read.append(epochs_of(parts, run.n_tokens, run.context_length, rows, run.text_share))
    return [
        f"source {part.name}: weight {part.weight:g}, {part.n_tokens:,} tokens to train on, read at most "
        f"{max(times[part.name] for times in read):.3g} times by a run; {other.n_tokens:,} held out"
        for part, other in zip(parts, held_out, strict=True)
    ]


def _require_enough(request: Request, corpus: Corpus) -> None:
    """Raise InputError where the corpus is too small for one of the runs or its held-out loss."""
    from data.enough import require_tokens
    from data.windows import window_starts

    for run in request.runs:
        rows = run.training.batch_tokens // run.context_length
        require_tokens(corpus, run.n_tokens, request.study.corpus.epochs, run.context_length, rows, run.text_share)
        window_starts(corpus.parts("validation"), run.context_length, request.study.evaluation.validation_tokens)


def _other_law(request: Request, corpus: Corpus) -> list[str]:
    """A line where learning rates follow a law that was swept on other text."""
    swept = {run.rate.get("corpus_fingerprint") for run in request.runs} - {None, corpus.fingerprint}
    fingerprints = ", ".join(sorted(str(fingerprint) for fingerprint in swept))
    return [f"learning rates follow a law that was swept on another corpus ({fingerprints})"] if swept else []


def reads_text(request: Request) -> bool:
    """Whether a chosen run is still to be trained."""
    runs = [(run, request.rundir(run)) for run in request.runs]
    return any(rundir.status()["state"] != "failed" and not is_trained(run, rundir) for run, rundir in runs)


def check_corpus(request: Request, data_later: bool = False) -> list[str]:
    """Raise InputError where `data_stage` would refuse, as far as that is known quickly and without writing: of a
    corpus that is there its size, of one that is not its text, its tokenizer and what its files can hold at most.

    data_later: that is no error, as of a study that is only planned. Returns lines about what is wrong, or may be.
    """
    try:
        return _foreseen(request, data_later)
    except InputError as error:
        message = f"{request.study.origin}: {error}"
        if not data_later:
            raise InputError(message) from None
        return [f"no run can begin: {message}"]


def _foreseen(request: Request, data_later: bool) -> list[str]:
    from data.checks import check_text, check_tokenizer, existing_corpus
    from data.corpus import check_at_hand
    from data.source_record import is_touched

    settings = request.study.corpus.settings()
    if (corpus := existing_corpus(settings, request.corpus_directory)) is not None:
        _require_enough(request, corpus)
        if corpus.is_left_out:
            if reads_text(request):
                check_at_hand(settings, request.corpus_directory)
            return []
        if is_touched(settings, request.corpus_directory):
            return [
                "corpus.source: its files have changed since the corpus was made, or are others: `scaling data` reads "
                "them, and refuses another text"
            ]
        return []
    lines = check_text(settings) + check_tokenizer(settings.tokenizer, fetch=not data_later)
    return lines + _too_little_text(request, settings)


def _too_little_text(request: Request, settings: CorpusSettings) -> list[str]:
    """A line where the text is likely too small for the runs. Raises InputError where it certainly is."""
    from data.checks import sizes_of
    from data.mixture import Part, short_of

    sizes, corpus, lines = sizes_of(settings), request.study.corpus, list[str]()
    most, likely = list[Part](), list[Part]()
    for stream in settings.streams:
        if (size := sizes[stream.name]) is None:  # its size is not known
            most.append(Part(stream.name, stream.weight, 0, 1 << 62))
            likely.append(most[-1])
            continue
        held_out = (size.about or 0) * (settings.validation_fraction or 0) + (stream.validation_tokens or 0)
        if (held_out_tokens := stream.validation_tokens or 0) >= size.most:
            raise InputError(
                f"corpus.validation_tokens: {held_out_tokens:,} tokens"
                f"{f' of source {stream.name}' if stream.name else ''} are asked for, and the text holds at most "
                f"{size.most:,}: ask for fewer, or give more text"
            )
        most.append(Part(stream.name, stream.weight, 0, size.most))
        likely.append(
            most[-1]._replace(n_tokens=size.most if size.about is None else max(0, round(size.about - held_out)))
        )
    shown = {stream.name: shown_source(stream.source) for stream in settings.streams}
    for run in request.runs:
        rows = run.training.batch_tokens // run.context_length
        shape = (run.n_tokens, corpus.epochs, run.context_length, rows, run.text_share)
        remedy = "give more text, plan fewer tokens, or raise corpus.epochs"

        def need(part: Part, needed: int, run: RunSpec = run) -> str:
            n_tokens = needed * run.context_length if part.name else run.n_tokens
            of = f" of source {part.name}" if part.name else ""
            return f"{run.run_id} plans to train on {n_tokens:,} tokens{of} in at most {corpus.epochs:g} epochs"

        for part, _, needed, _ in short_of(most, *shape):
            reason = f"{need(part, needed)}, but {shown[part.name]} holds at most {part.n_tokens:,}: {remedy}"
            raise InputError(f"corpus.source: {reason}")
        for part, _, needed, _ in short_of(likely, *shape) if not lines else ():
            reason = f"{need(part, needed)}, but the text probably has about {part.n_tokens:,}: {remedy}"
            lines.append(f"corpus.source: {reason}")
    return lines


def _too_few(request: Request, corpus: Corpus) -> list[str]:
    """A line where the study file asks for more held-out tokens than there are, of a mixture in its proportions."""
    from data.windows import window_starts

    study, parts = request.study, corpus.parts("validation")
    planned, n_held_out = study.evaluation.validation_tokens, corpus.n_tokens("validation")
    if "validation_tokens" not in study.evaluation.model_fields_set:
        return []
    if len(parts) > 1:
        for length in sorted({run.context_length for run in request.runs}):
            read = len(window_starts(parts, length, planned)) * length
            if read + length <= planned:
                limit = f"in the mixture's proportions {read:,} of the {n_held_out:,} held out can be evaluated"
                return [f"evaluation.validation_tokens asks for {planned:,}, {limit}"]
        return []
    if planned <= n_held_out:
        return []
    return [f"evaluation.validation_tokens asks for {planned:,}, {n_held_out:,} tokens are held out: all are evaluated"]


def describe_corpus(corpus: Corpus) -> str:
    """One line: sizes, what was left out, and the fingerprint."""
    splits, counts = corpus.manifest["splits"], corpus.manifest["counts"]
    others = ("documents", CUT)
    left_out = [f"{n:,} {name.replace('_', ' ')}" for name, n in counts.items() if n and name not in others]
    if (shared := corpus.manifest.get("shared", {})) and shared["tokens"]:
        left_out.append(f"{shared['tokens']:,} held-out tokens that training text holds too")
    return (
        f"corpus: {counted(counts['documents'], 'document')}, {splits['train']['tokens']:,} tokens to train on, "
        f"{splits['validation']['tokens']:,} held out"
        + (f" (left out: {', '.join(left_out)})" if left_out else "")
        + (f"; {counts[CUT]:,} ends of documents inside a line" if counts.get(CUT) else "")
        + f"; {corpus.fingerprint[:16]}"
        + _few_documents(splits["validation"]["documents"])
    )


def cleaning_lines(manifest: dict[str, Any]) -> list[str]:
    """What each step of cleaning dropped, with examples."""
    from data.clean.summary import examples, headline

    return [
        line
        for entry in manifest.get("cleaning", [])
        for line in (f"cleaning: {headline(entry)}", *(f"  {example}" for example in examples(entry)))
    ]


def _few_documents(n_held_out: int) -> str:
    if n_held_out >= FEW_DOCUMENTS:
        return ""
    return f"; only {counted(n_held_out, 'document')} held out, so the held-out loss says little about other text"
