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
    """data: a key of DATA; yaml: below lm_eval/tasks, or None for a class of SCROLLS; metrics: the task's, its main
    metric first (for table 4 the paper's choice of acc or acc_norm); choices: between how many answers `acc` chooses,
    in nearly all rows (of ReCoRD `f1`, about), None where they are free; version: of how we ask and score it."""

    data: str
    metrics: tuple[str, ...]
    yaml: str | None = None
    scrolls: str | None = None
    about: str = ""
    choices: int | None = None
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
TASKS: dict[str, LmTask] = {
    "boolq": LmTask("boolq", ("acc",), "super_glue/boolq/default.yaml", about="yes or no from a passage", choices=2),
    "piqa": LmTask("piqa", ("acc", "acc_norm"), "piqa/piqa.yaml", about="physical common sense, 2 choices", choices=2),
    "siqa": LmTask("siqa", ("acc",), "siqa/siqa.yaml", about="social common sense, 3 choices", choices=3),
    "hellaswag": LmTask(
        "hellaswag", ("acc_norm", "acc"), "hellaswag/hellaswag.yaml", about="how a scene goes on, 4", choices=4
    ),
    "winogrande": LmTask(
        "winogrande", ("acc",), "winogrande/default.yaml", about="who a pronoun means, 2 choices", choices=2
    ),
    "arc-easy": LmTask(
        "arc_easy", ("acc", "acc_norm"), "arc/arc_easy.yaml", about="school science, easy, about 4", choices=4
    ),
    "arc-challenge": LmTask(
        "arc_challenge", ("acc_norm", "acc"), "arc/arc_challenge.yaml", about="the same, hard", choices=4
    ),
    "openbookqa": LmTask(
        "openbookqa", ("acc_norm", "acc"), "openbookqa/openbookqa.yaml", about="elementary science", choices=4
    ),
    "wikitext": LmTask(
        "wikitext",
        ("word_perplexity", "byte_perplexity", "bits_per_byte"),
        "wikitext/wikitext.yaml",
        about="WikiText-2 by document, rolling windows, lm-eval's own",
    ),
    "lambada": LmTask("lambada", ("perplexity", "acc"), "lambada/lambada_openai.yaml", about="a passage's last word"),
    "cb": LmTask("cb", ("acc", "f1"), "super_glue/cb/default.yaml", about="SuperGLUE CommitmentBank", choices=3),
    "copa": LmTask("copa", ("acc",), "super_glue/copa/default.yaml", about="SuperGLUE cause or effect", choices=2),
    "multirc": LmTask(
        "multirc",
        ("acc", "em"),
        "super_glue/multirc/default.yaml",
        about="SuperGLUE, is an answer right",
        version=2,
        choices=2,
    ),
    "record": LmTask(
        "record", ("f1", "em"), "super_glue/record/default.yaml", about="SuperGLUE, fill in the entity", choices=12
    ),
    "rte": LmTask("rte", ("acc",), "super_glue/rte/default.yaml", about="SuperGLUE entailment", choices=2),
    "wic": LmTask(
        "wic", ("acc",), "super_glue/wic/default.yaml", about="SuperGLUE, one word in two sentences", choices=2
    ),
    "wsc": LmTask("wsc.fixed", ("acc",), "super_glue/wsc/default.yaml", about="SuperGLUE Winograd schemas", choices=2),
    "scrolls-govreport": LmTask("gov_report", ROUGE, scrolls="GovReport", about="summary of a report", version=2),
    "scrolls-summscreenfd": LmTask(
        "summ_screen_fd", ROUGE, scrolls="SummScreenFD", about="recap of an episode", version=2
    ),
    "scrolls-qmsum": LmTask("qmsum", ROUGE, scrolls="QMSum", about="summary of a meeting for a question", version=2),
    "scrolls-qasper": LmTask("qasper", ("f1",), scrolls="Qasper", about="questions on a paper", version=2),
    "scrolls-narrativeqa": LmTask(
        "narrative_qa", ("f1",), scrolls="NarrativeQA", about="questions on a story", version=2
    ),
    "scrolls-quality": LmTask(
        "quality", ("em", "acc", "acc_norm"), scrolls="QuALITY", about="4 choices on a story", choices=4
    ),
    "scrolls-contractnli": LmTask(
        "contract_nli", ("em", "acc", "acc_norm"), scrolls="ContractNLI", about="3 choices", choices=3
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
