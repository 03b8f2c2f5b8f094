"""Seeded changes of valid study files, cluster profiles and command lines: wrong types, signs, names, sizes, YAML."""

from __future__ import annotations

import copy
import datetime
import random
from collections.abc import Iterator
from typing import Any

import yaml

NUMBERS: tuple[Any, ...] = (0, -1, 1, 2, 3, 7, 255, 2**31, 2**63, 2**64, 10**18, 10**19, 10**30, 10**400, -(10**30))
FLOATS = (0.0, -0.0, 0.5, 1.5, -0.1, 5e-324, 1e-9, 1e18, 1e308, -1e308, float("inf"), -float("inf"), float("nan"))
TEXTS: tuple[Any, ...] = (
    *("", " ", "1_000", "1e3", "1e999", "0x10", "0o17", "1:30:00", "yes", "on", "null", "~", "-", "--", "--set", "="),
    *("tnl", "llama", "hgrn1", "14k", "25k", "410m", "tnl/14k", "/", "//", "tnl/", "bytes", "cl100k_base", "fp32", "."),
    *("synthetic:", "synthetic:0:100", "synthetic:-1:x", "stdlib:", "../..", "~", "/dev/null", "/proc/self", "$HOME"),
    *("é", "日本", "\u202e", "\u2028", "\ufeff", "😀" * 40, "\x00", "\x07", "\x1b[2J", "a\nb", "x" * 5000, "%s"),
    *("1.2.3", "1,5", "[", "]", "{", "'", '"', "#", "!!", "&a", "*a", "<<", "NaN", ".inf", "-.inf", ".5", "+1", "1."),
    *("\u0663", "a\tb", "{}", "{0}", "__class__"),
)  # fmt: skip
OTHERS: tuple[Any, ...] = (
    *(None, True, False, [], {}, [[]], [None], [{}], {"": ""}, {"a": 1}, ["tnl"], ["14k"], [1, 2], [2, 1], [0.5, 0.5]),
    *(datetime.date(2020, 1, 1), b"\x00\xff", ["x"] * 500, {f"k{i}": i for i in range(200)}),
)
ZOO = NUMBERS + FLOATS + TEXTS + OTHERS
NAMES = (
    *("llama", "tnl", "hgrn2", "cosformer2", "hgrn1", "mamba2", "mamba1", "6k", "10k", "14k", "25k", "55k", "98k"),
    *("70m", "410m", "7b", "llama-7b", "mamba-130m", "rms", "layer", "srms", "bf16", "fp32", "6nd", "exact", "paper"),
    *("niah", "validation", "train_smoothed", "envelope", "bigram", "none", "fixed", "off", "only", "real", "complex"),
)  # fmt: skip
SNIPPETS = (
    *("&a", "*a", "<<: *a\n", "!!python/object/apply:os.getcwd []", "!!binary x", "!!set {a}", "!!omap [a: 1]"),
    *("---\n", "...\n", "%YAML 9.9\n", "\t", "\x00", "\x07", "\ufeff", "\r", "\u2028", "? ", ": ", "- ", "| \n"),
    *("!!float x", "> \n", "#"),
    *("{", "}", "[", "]", ",", "'", '"', "name: again\n", "2020-01-01", "1_0", "0b1", "=", "@", "`", "\\", "\udcff"),
    *("[" * 400, "{a: " * 200, "x" * 20_000, "a: &a [1]\nb: &b [*a, *a]\n"),
)  # fmt: skip


def paths_of(tree: Any, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the values of nested mappings and lists are."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*prefix, key)
        yield from paths_of(value, (*prefix, key))


def typo(draw: random.Random, word: str) -> str:
    """`word` with a letter dropped, doubled, changed or moved."""
    if not word:
        return "x"
    at = draw.randrange(len(word))
    return draw.choice(
        (
            word[:at] + word[at + 1 :],
            word[:at] + word[at] + word[at:],
            word[:at] + draw.choice("abcxyz_-. /0é") + word[at + 1 :],
            word[:at][::-1] + word[at:],
            word.upper(),
            word + draw.choice("s_ .0"),
        )
    )


def changed_value(draw: random.Random, value: Any) -> Any:
    """Another value in the place of `value`."""
    how = draw.randrange(8)
    if how in (0, 4, 5, 6) and isinstance(value, (int, float)) and abs(value) < 1e300:  # many make another valid study
        tweaks = (-value, value * 10**9, value / 3, value + 0.5, value + 1, value - 1)
        return draw.choice((value * 2, value * 2, value // 2, value * 10, value * 1000, *tweaks, str(value), [value]))
    if how in (4, 5) and isinstance(value, str):
        return draw.choice(NAMES)
    if how == 1 and isinstance(value, str):
        return typo(draw, value)
    if how == 2 and isinstance(value, list):
        as_keys = dict.fromkeys(map(str, value))
        return draw.choice((value * 2, value[::-1], value[:1], [value], [*value, draw.choice(ZOO)], as_keys))
    if how == 3:
        nested = value
        for _ in range(draw.choice((1, 2, 30))):
            nested = draw.choice(([nested], {"a": nested}))
        return nested
    return copy.deepcopy(draw.choice(ZOO))


def changed_tree(draw: random.Random, tree: dict[str, Any]) -> dict[str, Any]:
    """One to three changes: a value, a key, a key left out, a part put elsewhere."""
    tree = copy.deepcopy(tree)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        places = list(paths_of(tree))
        if not places:
            return tree
        path = draw.choice(places)
        parent = tree
        for key in path[:-1]:
            parent = parent[key]
        how = draw.randrange(10)
        if how == 0:
            del parent[path[-1]]
        elif how == 1 and isinstance(parent, dict):
            parent[draw.choice((typo(draw, str(path[-1])), *TEXTS, 1, 1.5, None, True))] = parent.pop(path[-1])
        elif how == 2 and isinstance(parent, dict):
            source = tree
            for key in draw.choice(places):
                source = source[key]
            parent[path[-1]] = copy.deepcopy(source)
        else:
            parent[path[-1]] = changed_value(draw, parent[path[-1]])
    return tree


def changed_text(draw: random.Random, text: str) -> str:
    """One to three changes of the characters of a YAML text."""
    for _ in range(draw.choice((1, 1, 2, 3))):
        at, end = sorted(draw.randrange(len(text) + 1) for _ in range(2))
        how = draw.randrange(8)
        if how < 3:
            text = text[:at] + draw.choice(SNIPPETS) + text[at:]
        elif how == 3:
            text = text[:at] + text[min(end, at + 20) :]
        elif how == 4:
            text = text[:at]
        elif how == 5:
            lines = text.split("\n")
            i, j = (draw.randrange(len(lines)) for _ in range(2))
            lines[i], lines[j] = lines[j], lines[i]
            text = "\n".join(lines)
        elif how == 6:
            old, new = draw.choice((": ", ", ", "\n", "[", "{", "  ")), draw.choice((":", " ", "\n", "\n\n", "\t"))
            text = text.replace(old, new, 1)
        else:
            text = text[:at] + typo(draw, text[at : at + 4]) + text[at + 4 :]
    return text


# A billion laughs: a few lines that stand for 10^12 words.
LAUGHS = "".join(
    [
        "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n",
        *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)),
    ]
)


def changed_file(draw: random.Random, text: str) -> bytes:
    """A valid YAML file, changed in its values or in its characters."""
    how = draw.randrange(20)
    if how == 0:
        key = draw.choice(("lr", "archs", "source", "nodes", "name"))
        return (LAUGHS + text.replace(f"{key}:", "zzz:", 1)).encode()
    if how == 1:
        value = draw.choice(("*a11", "[*a11]", "{k: *a11}", "*a3"))
        key = draw.choice([line.partition(":")[0] for line in text.split("\n") if ":" in line and line[:1].isalpha()])
        return (LAUGHS + text + f"\n{key}: {value}\n").encode()
    if how == 2:
        return bytes(draw.randrange(256) for _ in range(draw.choice((0, 1, 10, 1000))))
    if how < 8:
        return changed_text(draw, text).encode("utf-8", errors="surrogateescape")
    tree = changed_tree(draw, yaml.safe_load(text))
    return yaml.safe_dump(tree, allow_unicode=draw.random() < 0.5, sort_keys=False).encode("utf-8", "surrogatepass")


def changed_words(draw: random.Random, words: list[str], kept: int) -> list[str]:
    """A command line with one to three changes after its first `kept` words."""
    words = list(words)
    for _ in range(draw.choice((1, 1, 2, 3))):
        at = draw.randrange(kept, len(words) + 1)
        how = draw.randrange(6)
        text = str(draw.choice((*NUMBERS[:-2], *FLOATS, *TEXTS, "\udcff"))).replace("\x00", "\x01")
        if how == 0 or at == len(words):
            words.insert(at, text)
        elif how == 1:
            del words[at]
        elif how == 2:
            words[at] = typo(draw, words[at])
        elif how == 3:
            words.insert(at, words[draw.randrange(kept, len(words))])
        elif "=" in words[at] and how == 4:
            key, _, value = words[at].partition("=")
            pairs = ((key, text), (typo(draw, key), value), (text, value), ("", value), (key, f"{value},{value}"))
            words[at] = draw.choice((key, *("=".join(pair) for pair in pairs)))
        else:
            words[at] = text
    return words
