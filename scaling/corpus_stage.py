"""The first stage of a study: its corpus, made where it is missing, and large enough for what is asked for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from arch.errors import InputError

from .plan import short

if TYPE_CHECKING:
    from data.corpus import Corpus

    from .commands import Request
    from .spec import StudySpec


def data_stage(request: Request) -> Corpus:
    """The corpus, made where it is missing, and large enough for every run asked for and its evaluation."""
    from analysis.evals.windows import window_starts
    from data.corpus import prepare, require_tokens
    from data.settings import CorpusSettings

    wanted = request.study.corpus
    settings = CorpusSettings(
        source=wanted.source[0] if len(wanted.source) == 1 else tuple(wanted.source),
        tokenizer=wanted.tokenizer,
        text_key=wanted.text_key,
        validation_fraction=wanted.validation_fraction,
        validation_tokens=wanted.validation_tokens,
        max_bytes=wanted.max_bytes,
        seed=wanted.seed,
    )
    shown = time.monotonic()

    def progress(done: int, total: int | None, message: str) -> None:
        nonlocal shown
        if time.monotonic() - shown >= (0.5 if request.stream.isatty() else 10.0):
            shown = time.monotonic()
            share = f"{done / total:.0%}" if total else short(done, "B")
            request.line(f"corpus: {share} read, {message}", True)

    try:
        corpus = prepare(settings, request.corpus_directory, progress)
        for run in request.runs:
            rows = run.training.batch_tokens // run.context_length
            require_tokens(corpus, run.n_tokens, wanted.epochs, run.context_length, rows)
            window_starts(len(corpus.validation), run.context_length, request.study.evaluation.validation_tokens)
    except InputError as error:
        raise InputError(f"{request.study.origin}: {error}") from None
    request.line(describe_corpus(corpus), False)
    if (made_of := corpus.manifest["settings"]["source"]) != wanted.source:
        request.say(f"corpus: made of {', '.join(made_of)}; {', '.join(wanted.source)} holds the same text")
    for line in [*corpus.warnings, *_too_few(request.study, corpus)]:
        request.say(f"warning: {line}")
    return corpus


def _too_few(study: StudySpec, corpus: Corpus) -> list[str]:
    """A line where the study file asks for more held-out tokens than there are."""
    wanted, there = study.evaluation.validation_tokens, len(corpus.validation)
    if wanted <= there or "validation_tokens" not in study.evaluation.model_fields_set:
        return []
    return [f"evaluation.validation_tokens asks for {wanted:,}, {there:,} tokens are held out: all are evaluated"]


def describe_corpus(corpus: Corpus) -> str:
    """One line: sizes, what was left out, and the fingerprint."""
    splits, counts = corpus.manifest["splits"], corpus.manifest["counts"]
    left_out = [f"{n:,} {name.replace('_', ' ')}" for name, n in counts.items() if n and name != "documents"]
    if (shared := corpus.manifest.get("shared", {})) and shared["tokens"]:
        left_out.append(f"{shared['tokens']:,} held-out tokens that training text holds too")
    return (
        f"corpus: {counts['documents']:,} documents, {splits['train']['tokens']:,} tokens to train on, "
        f"{splits['validation']['tokens']:,} held out"
        + (f" (left out: {', '.join(left_out)})" if left_out else "")
        + f"; {corpus.fingerprint[:16]}"
    )
