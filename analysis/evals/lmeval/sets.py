"""Which data sets there are, where they come from and lie, and which of lm-eval's tasks reads which. Pure data.

A data set is a JSONL file of the hub's own rows below the data folder (`scaling eval fetch` writes it). A task is one
of lm-eval's, by its YAML file or SCROLLS class, with its own prompt and metrics; only the place of its data is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from analysis.scales import ACCURACY, PERPLEXITY, TREND, Scale


@dataclass(frozen=True)
class DataSet:
    """hub: repository; config: its configuration; split: the labelled split that is evaluated; file: below the data
    folder; archive: the file of the repository that holds the rows, where it is no table (SCROLLS' zips)."""

    hub: str
    config: str | None
    split: str
    file: str
    archive: str | None = None


@dataclass(frozen=True)
class LmTask:
    """data: a key of DATA; yaml: below lm_eval/tasks, or None where `scrolls` is its class; metrics: the main metric
    first (for table 4 the paper's choice of acc or acc_norm); choices: between how many answers `acc` chooses,
    in nearly all rows (of ReCoRD `f1`, about), None where they are free; version: of how we ask and score it."""

    data: str
    metrics: tuple[str, ...]
    about: str
    choices: int | None = None
    yaml: str | None = None
    scrolls: str | None = None
    version: int = 1

    @property
    def scales(self) -> Mapping[str, Scale]:
        """By metric, of LAMBADA both, of the others the main one."""
        metrics = self.metrics if self.data == "lambada" else self.metrics[:1]
        return {metric: self._scale(metric) for metric in metrics}

    def _scale(self, metric: str) -> Scale:
        if self.scrolls:
            return Scale(TREND, full=100.0)
        if metric.endswith("perplexity"):
            return Scale(PERPLEXITY, higher_is_better=False)
        if metric.startswith("acc"):
            return Scale(ACCURACY, chance=1 / self.choices if self.choices else 0.0)
        return Scale(TREND)


def _glue(config: str) -> DataSet:
    return DataSet("aps/super_glue", config, "validation", f"super_glue/{config}/validation.jsonl")


def _scrolls(config: str) -> DataSet:
    return DataSet(
        "tau/scrolls",
        config,
        "validation",
        f"scrolls/{config}/validation.jsonl",
        f"{config}.zip:{config}/validation.jsonl",
    )


DATA: dict[str, DataSet] = {
    "boolq": _glue("boolq"),
    "piqa": DataSet("baber/piqa", None, "validation", "piqa/validation.jsonl"),
    "siqa": DataSet("lighteval/siqa", None, "validation", "siqa/validation.jsonl"),
    "hellaswag": DataSet("Rowan/hellaswag", None, "validation", "hellaswag/validation.jsonl"),
    "winogrande": DataSet("allenai/winogrande", "winogrande_xl", "validation", "winogrande/validation.jsonl"),
    "arc_easy": DataSet("allenai/ai2_arc", "ARC-Easy", "test", "arc_easy/test.jsonl"),
    "arc_challenge": DataSet("allenai/ai2_arc", "ARC-Challenge", "test", "arc_challenge/test.jsonl"),
    "openbookqa": DataSet("allenai/openbookqa", "main", "test", "openbookqa/test.jsonl"),
    "wikitext": DataSet("EleutherAI/wikitext_document_level", "wikitext-2-raw-v1", "test", "wikitext/test.jsonl"),
    "lambada": DataSet("EleutherAI/lambada_openai", "default", "test", "lambada/test.jsonl"),
    **{name: _glue(name) for name in ("cb", "copa", "multirc", "record", "rte", "wic", "wsc.fixed")},
    **{
        name: _scrolls(name)
        for name in ("gov_report", "summ_screen_fd", "qmsum", "qasper", "narrative_qa", "quality", "contract_nli")
    },
}

ROUGE = ("rouge1", "rouge2", "rougeL")


def _superglue(
    data: str, about: str, metrics: tuple[str, ...] = ("acc",), choices: int = 2, version: int = 1
) -> LmTask:
    yaml = f"super_glue/{data.removesuffix('.fixed')}/default.yaml"
    return LmTask(data, metrics, f"SuperGLUE, {about}", choices, yaml, version=version)


TASKS: dict[str, LmTask] = {
    "boolq": _superglue("boolq", "yes or no from a passage"),
    "piqa": LmTask("piqa", ("acc", "acc_norm"), "physical common sense", 2, "piqa/piqa.yaml"),
    "siqa": LmTask("siqa", ("acc",), "social common sense", 3, "siqa/siqa.yaml"),
    "hellaswag": LmTask("hellaswag", ("acc_norm", "acc"), "how a scene goes on", 4, "hellaswag/hellaswag.yaml"),
    "winogrande": LmTask("winogrande", ("acc",), "who a pronoun means", 2, "winogrande/default.yaml"),
    "arc-easy": LmTask("arc_easy", ("acc", "acc_norm"), "school science, easy", 4, "arc/arc_easy.yaml"),
    "arc-challenge": LmTask("arc_challenge", ("acc_norm", "acc"), "school science, hard", 4, "arc/arc_challenge.yaml"),
    "openbookqa": LmTask("openbookqa", ("acc_norm", "acc"), "elementary science", 4, "openbookqa/openbookqa.yaml"),
    "wikitext": LmTask(
        "wikitext",
        ("word_perplexity", "byte_perplexity", "bits_per_byte"),
        "WikiText-2 by document, rolling windows, lm-eval's own",
        yaml="wikitext/wikitext.yaml",
    ),
    "lambada": LmTask("lambada", ("perplexity", "acc"), "a passage's last word", yaml="lambada/lambada_openai.yaml"),
    "cb": _superglue("cb", "CommitmentBank", ("acc", "f1"), 3),
    "copa": _superglue("copa", "cause or effect"),
    "multirc": _superglue("multirc", "is an answer right", ("acc", "em"), version=2),
    "record": _superglue("record", "fill in the entity", ("f1", "em"), 12),
    "rte": _superglue("rte", "entailment"),
    "wic": _superglue("wic", "one word in two sentences"),
    "wsc": _superglue("wsc.fixed", "Winograd schemas"),
    "scrolls-govreport": LmTask("gov_report", ROUGE, "summary of a report", scrolls="GovReport", version=2),
    "scrolls-summscreenfd": LmTask("summ_screen_fd", ROUGE, "recap of an episode", scrolls="SummScreenFD", version=2),
    "scrolls-qmsum": LmTask("qmsum", ROUGE, "summary of a meeting for a question", scrolls="QMSum", version=2),
    "scrolls-qasper": LmTask("qasper", ("f1",), "questions on a paper", scrolls="Qasper", version=2),
    "scrolls-narrativeqa": LmTask("narrative_qa", ("f1",), "questions on a story", scrolls="NarrativeQA", version=2),
    "scrolls-quality": LmTask("quality", ("em", "acc", "acc_norm"), "choices on a story", 4, scrolls="QuALITY"),
    "scrolls-contractnli": LmTask(
        "contract_nli", ("em", "acc", "acc_norm"), "what a contract says", 3, scrolls="ContractNLI"
    ),
}
CSR = ("boolq", "piqa", "siqa", "hellaswag", "winogrande", "arc-easy", "arc-challenge", "openbookqa")
SUPERGLUE = ("boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc")
SCROLLS = tuple(name for name in TASKS if name.startswith("scrolls-"))
PRESETS: dict[str, tuple[str, ...]] = {
    "csr": CSR,
    "ppl": ("wikitext", "lambada"),
    "superglue": SUPERGLUE,
    "scrolls": SCROLLS,
}
