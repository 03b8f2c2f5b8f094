"""What a corpus' manifest says beside its files: what identifies it, and where it differs from its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arch.amounts import counted
from arch.errors import InputError
from data.files import hash_of
from data.mixture import Part
from data.settings import CorpusSettings, identity_of, shown_source
from data.splits import SPLITS, Written, together
from data.splitting import Reading

CUT = "cut_lines"  # of the counts: nothing is left out
FAR = 2.0  # the held-out share may differ from the requested one by this factor without a warning


def is_whole(manifest: dict[str, Any]) -> bool:
    """Whether a manifest has everything that its readers use, without contradictions."""
    try:
        of_settings = identity_of(manifest["settings"])
        texts = [
            manifest["fingerprint"],
            manifest["tokenizer"]["name"],
            manifest["tokenizer"]["identity"],
            manifest["text_sha256"],
            of_settings["tokenizer"],
            of_settings["text_key"],
        ]
        texts += [stream["name"] for stream in manifest.get("mixture", [])]
        streams = [manifest, *manifest.get("mixture", [])]
        numbers = [manifest["held_out_share"], *(stream["weight"] for stream in streams[1:])]
        numbers += [n for stream in streams for n in stream["shared"].values()] + [*manifest["counts"].values()]
        whole = all(_agrees(stream["splits"][split], manifest["files"]) for stream in streams for split in SPLITS)
        sums = together([stream["splits"] for stream in streams[1:]]) if streams[1:] else manifest["splits"]
        warnings_of(manifest)
        lists = [manifest.get("same_text", []), manifest.get("cleaning", [])]
        return (
            whole
            and sums == manifest["splits"]
            and all(isinstance(text, str) for text in texts)
            and all(type(number) in (int, float) and number >= 0 for number in numbers)
            and all(isinstance(entries, list) for entries in lists)
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError):
        return False


def _agrees(split: dict[str, Any], files: dict[str, Any]) -> bool:
    """Whether the counts of a split are those of its shards, and its shards' those of their files."""
    counts = [split[key] for key in ("documents", "bytes", "tokens")]
    shards = split["shards"]
    return (
        split["dtype"] in ("uint16", "uint32")
        and all(type(count) is int and count >= 0 for count in counts)
        and split["tokens"] == sum(shard["tokens"] for shard in shards)
        and all(
            files[shard["file"]]["sha256"] == shard["sha256"]
            and files[shard["file"]]["bytes"] == shard["tokens"] * int(split["dtype"][4:]) // 8
            for shard in shards
        )
        and bool(shards)
    )


def describe_splits(settings: CorpusSettings, written: list[Written]) -> dict[str, Any]:
    """The manifest's "splits" and, of a mixture, its "mixture": the same of each source."""
    described: dict[str, Any] = {"splits": together(written), "held_out_share": held_out_share(together(written))}
    if settings.mixture:
        described["mixture"] = [
            {
                "name": stream.name,
                "weight": stream.weight,
                "text_key": stream.text_key,
                "validation_tokens": stream.validation_tokens,
                "held_out_share": held_out_share(splits),
                "splits": splits,
            }
            for stream, splits in zip(settings.streams, written, strict=True)
        ]
    return described


def held_out_share(splits: Written) -> float:
    """The share of the bytes that is held out."""
    n_bytes = {split: splits[split]["bytes"] for split in SPLITS}
    return float(n_bytes["validation"] / sum(n_bytes.values()))


def add_cuts(manifest: dict[str, Any], written: list[Written], passage_tokens: int, cuts: list[dict[str, int]]) -> None:
    """What was cut of each stream's held-out text, and the splits that this left."""
    sums = {key: sum(cut[key] for cut in cuts) for key in cuts[0]}
    manifest |= {"splits": together(written), "shared": {"passage_tokens": passage_tokens} | sums}
    for stream, splits, cut in zip(manifest.get("mixture", []), written, cuts, strict=False):
        stream |= {"splits": splits, "shared": cut}


def streams_in(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """What "mixture" says of each of its sources; of another corpus the same of the whole, which has no name."""
    if "mixture" in manifest:
        return list(manifest["mixture"])
    kept = {key: manifest[key] for key in ("splits", "held_out_share", "shared") if key in manifest}
    requested = {"validation_tokens": manifest["settings"]["validation_tokens"]}
    return [{"name": "", "weight": 1.0, "text_key": manifest["settings"]["text_key"]} | requested | kept]


def parts_of(manifest: dict[str, Any], split: str) -> list[Part]:
    """Where the tokens of each source of a mixture lie in a split; of another corpus the whole, without a name."""
    parts, first = list[Part](), 0
    for stream in manifest.get("mixture") or [{"name": "", "weight": 1.0, "splits": manifest["splits"]}]:
        n_tokens = stream["splits"][split]["tokens"]
        parts.append(Part(stream["name"], stream["weight"], first, n_tokens))
        first += n_tokens
    return parts


def checksums(manifest: dict[str, Any]) -> dict[str, Any]:
    """Of each split the checksums of its shards, of a mixture by source."""

    def of(splits: Written, split: str) -> list[str]:
        return [shard["sha256"] for shard in splits[split]["shards"]]

    if "mixture" in manifest:
        return {split: [of(stream["splits"], split) for stream in manifest["mixture"]] for split in SPLITS}
    return {split: of(manifest["splits"], split) for split in SPLITS}


def fingerprint_of(settings: CorpusSettings, manifest: dict[str, Any]) -> str:
    """What identifies a corpus: its settings and its shards."""
    identity = {"settings": settings.identity(), "shards": checksums(manifest)}
    return hash_of(identity | {"passage_tokens": manifest["shared"]["passage_tokens"]})


def skipped_of(counts: Mapping[str, int]) -> list[str]:
    """What a corpus leaves out, by its counts, as "1 duplicate" and "2 invalid records"."""
    names = {name: name.replace("_", " ") for name, n in counts.items() if n and name not in ("documents", CUT)}
    return [counted(counts[name], words.removesuffix("s"), words) for name, words in names.items()]


def check_splits(settings: CorpusSettings, reading: Reading, written: list[Written]) -> None:
    """Raise InputError where a split of a stream is empty."""
    skipped = ", ".join(skipped_of(reading.counts))
    for stream, seen, splits in zip(settings.streams, reading.seen, written, strict=True):
        shown = shown_source(stream.source)
        if seen.documents == 0:
            if seen.duplicates:
                raise InputError(
                    f"corpus.source: nothing is left of {shown}: an earlier source has all of its text "
                    f"({counted(seen.duplicates, 'document')}) word for word; leave one of the two out"
                )
            raise InputError(f"corpus.source: no usable text in {shown} ({skipped or 'it is empty'}); give UTF-8 text")
        for split in SPLITS:
            if splits[split]["documents"] == 0:
                of = f" of source {stream.name}" if stream.name else ""
                raise InputError(
                    f"corpus.source: the {split} split{of} is empty: there is {seen.documents} document"
                    f"{f' (left out: {skipped})' if skipped else ''}; give more documents (a record of JSONL or of "
                    "a table, a file of a folder, or about 64 KiB of a text file that is named itself)"
                )


def warnings_of(manifest: dict[str, Any]) -> list[str]:
    """A line for each way in which the held-out text differs from the settings."""
    lines = list[str]()
    if "entropy_rate" in manifest and manifest["shared"]["tokens"]:
        lines.append(
            f"{manifest['shared']['tokens']:,} tokens of the held-out text were cut, because the training text has "
            "them too: the rest has a higher entropy than the source's rate"
        )
    fraction = manifest["settings"]["validation_fraction"]
    for stream in streams_in(manifest):
        splits = stream["splits"]
        n_bytes = {split: splits[split]["bytes"] for split in SPLITS}
        share = stream["held_out_share"]
        target, reached, setting = fraction, share, f"validation_fraction {fraction}"
        if target is None:
            target, reached = stream["validation_tokens"], splits["validation"]["tokens"] + stream["shared"]["tokens"]
            setting = f"validation_tokens {target:,}"
        if not target / FAR <= reached <= target * FAR:
            of = f"source {stream['name']}" if stream["name"] else "the text"
            lines.append(
                f"{share:.2%} of {of}'s bytes are held out ({n_bytes['validation']:,} bytes in "
                f"{counted(splits['validation']['documents'], 'document')}), where corpus.{setting} is set: "
                f"whole documents are drawn, and they are few or of unequal lengths; change it, or cut the text "
                f"into more "
                f"documents"
            )
    return lines
