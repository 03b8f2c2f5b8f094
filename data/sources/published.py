"""Published data sets that packaged studies read from local files: where one is missing, how it is laid out."""

from __future__ import annotations

WIKITEXT = (
    "WikiText-103 (Merity et al. 2017) is the folder wikitext-103-raw with wiki.train.raw, wiki.valid.raw and "
    "wiki.test.raw, 540 MB of text, or wikitext-103 with wiki.train.tokens and so on, whose rare words are <unk>"
)
LAYOUTS = {  # by the end of the path that a study names
    "wikitext-103-raw": WIKITEXT,
    "wikitext-103": WIKITEXT,
    "pile/train": "the Pile (Gao et al. 2020) is the folder pile with train/00.jsonl.zst to train/29.jsonl.zst, "
    "val.jsonl.zst and test.jsonl.zst, 825 GiB of text",
}


def layout(path: str) -> str:
    """How the published set at `path`, or in its folder, is laid out, after "; "; "" for others."""
    ends = (path.rstrip("/"), path.rpartition("/")[0])
    return "".join(f"; {text}" for name, text in LAYOUTS.items() if any(f"/{end}".endswith(f"/{name}") for end in ends))
