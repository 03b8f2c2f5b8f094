"""A small sample of text with something for every rule; its figures are in the tests that use it."""

import json
from pathlib import Path

import numpy as np

KINDS = ("good", "好的", "repeats", "short", "copy")


def sample(folder: Path, n_files: int) -> tuple[str, ...]:
    """JSONL files of 45 documents in all, and two lines that are none: a first word says what a document is. 20 good
    ones, 10 Chinese ones, 5 that repeat themselves, 4 too short, 6 near-copies of good ones."""
    draw = np.random.default_rng(0)
    words = [f"{a}{b}" for a in ("ba", "de", "ki", "lo", "mu", "san", "tor", "vel") for b in ("rin", "to", "ka", "men")]
    common = ["the", "of", "and", "to", "that", "with"]
    characters = [chr(point) for point in range(0x4E00, 0x4E00 + 400)]

    def prose(n: int) -> list[str]:
        return [str(draw.choice(common if draw.random() < 0.3 else words)) for _ in range(n)]

    good = [prose(150) for _ in range(20)]
    texts = ["good " + " ".join(text) for text in good]
    texts += ["好的 " + "".join(draw.choice(characters, 200)) for _ in range(10)]
    texts += ["repeats\n" + "\n".join([" ".join(prose(8))] * 12) for _ in range(5)]
    texts += ["short " + " ".join(prose(45)) for _ in range(4)]
    texts += ["copy " + " ".join(text[:-2] + prose(2)) for text in good[:6]]
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts] + ["{broken", json.dumps({"text": 3})]
    paths = [folder / f"part{i}.jsonl" for i in range(n_files)]
    for i, path in enumerate(paths):
        path.write_text("\n".join(lines[i::n_files]) + "\n", encoding="utf-8")
    return tuple(map(str, paths))
