"""What is hidden: a sentence, the question that it answers, and the answer; the classic one, and seeded facts."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Needle:
    """statement: the sentence that is hidden; answer: the part of it that must come out."""

    statement: str
    question: str
    answer: str


# The English one is that of the public tool (gkamradt/LLMTest_NeedleInAHaystack); the Chinese one says the same.
CLASSIC = {
    "en": Needle(
        "The best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny day.",
        "What is the best thing to do in San Francisco?",
        "eat a sandwich and sit in Dolores Park on a sunny day",
    ),
    "zh": Needle(
        "在旧金山最值得做的事，就是找个晴天坐在多洛雷斯公园里吃三明治。",
        "在旧金山最值得做的事是什么？",
        "找个晴天坐在多洛雷斯公园里吃三明治",
    ),
}
FACTS = {
    "en": ("The magic number of the {key} is #{value}.", "What is the magic number of the {key}?"),
    "zh": ("{key}的幸运数字是#{value}。", "{key}的幸运数字是多少？"),
}
KEYS = {
    "en": (
        *("apple", "beach", "bread", "bride", "cabin", "chair", "cloud", "coast", "eagle", "field", "flame", "forge"),
        *("grape", "heron", "horse", "house", "kayak", "lemon", "maple", "mouse", "ocean", "olive", "onion", "otter"),
        *("pearl", "piano", "plain", "queen", "raven", "river", "robin", "shore", "snail", "spoon", "stone", "storm"),
        *("table", "tiger", "torch", "tower", "train", "tulip", "viola", "wagon", "whale", "wheat", "wheel", "zebra"),
    ),
    "zh": ("苹果", "面包", "海滩", "白云", "老鹰", "火焰", "葡萄", "河流", "石头", "老虎", "火车", "钢琴"),
}


def fact(language: str, digits: int, seed: str) -> Needle:
    """A number of so many digits, the first not 0, that belongs to a word; both drawn from `seed` alone.

    A model cannot know it but from the text, and answers of one length do not differ in how hard they are to spell. The
    # tells where the number begins: a tiny model of bytes copies what followed the same byte before.
    """
    draw = random.Random(f"niah {seed}")
    key, value = draw.choice(KEYS[language]), str(draw.randrange(10 ** (digits - 1), 10**digits))
    statement, question = FACTS[language]
    return Needle(statement.format(key=key, value=value), question.format(key=key), value)
