"""The judge's levels, on answers as models give them."""

import pytest

from analysis.evals.niah.prompts import CLASSIC, FACTS, KEYS, fact
from analysis.evals.niah.scores import score, words

EN, ZH = CLASSIC["en"], CLASSIC["zh"]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (EN.statement, 10),
        ("Eat a sandwich and sit in Dolores Park on a sunny day!", 10),
        ("EAT A SANDWICH, and sit in Dolores Park -- on a sunny day. Or go home.", 10),
        # key words: eat sandwich sit dolores park sunny day
        ("On a sunny day, sit in Dolores Park and eat a sandwich.", 7),  # all seven, in another order
        ("eat a sandwich in Dolores Park on a sunny day", 7),  # six of seven
        ("sit in Dolores Park on a bench", 3),  # 3/7
        ("sit in Dolores Park, it is sunny", 5),  # 4/7
        ("visit Golden Gate Park", 1),  # 1/7
        ("The best thing to do in San Francisco is the best thing to do in San Francisco", 1),
        ("eatasandwich", 1),
        ("", 1),
    ],
)
def test_levels_in_english(answer, expected):
    assert score(answer, EN.answer, EN.question) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (ZH.statement, 10),
        ("找个晴天，坐在多洛雷斯公园里吃三明治。", 10),
        ("坐在多洛雷斯公园里吃三明治", 7),
        ("在旧金山最值得做的事就是在旧金山", 1),
        ("", 1),
    ],
)
def test_levels_in_chinese(answer, expected):
    assert score(answer, ZH.answer, ZH.question) == expected


def test_a_number_counts_whole_or_not_at_all():
    needle = fact("en", 7, "x")
    assert score(f"It is {needle.answer}.", needle.answer, needle.question) == 10
    assert score(needle.answer + "1", needle.answer, needle.question) == 1
    assert score(needle.answer[:-1], needle.answer, needle.question) == 1
    assert score(needle.question, needle.answer, needle.question) == 1


def test_words_of_both_scripts():
    assert words("Ａ 3.5-inch Disk，两个苹果") == ["a", "3", "5", "inch", "disk", "两", "个", "苹", "果"]


def test_an_answer_within_its_question_is_no_answer():
    with pytest.raises(ValueError, match="no word that the question has not"):
        score("no", "San Francisco", EN.question)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_facts_come_from_their_seed(language):
    facts = [fact(language, 7, str(seed)) for seed in range(300)]
    assert facts == [fact(language, 7, str(seed)) for seed in range(300)]
    assert len({needle.answer for needle in facts}) == 300 and all(len(needle.answer) == 7 for needle in facts)
    assert len({needle.question for needle in facts}) == len(KEYS[language])
    statement, question = FACTS[language]
    for needle in facts:
        assert needle.answer in needle.statement and needle.answer not in needle.question
        key = next(k for k in KEYS[language] if needle.question == question.format(key=k))
        assert needle.statement == statement.format(key=key, value=needle.answer)


def test_english_keys_are_all_of_one_length():
    """Needles of a length then have equally many bytes, and make one batch."""
    assert {len(key) for key in KEYS["en"]} == {5} and len(set(KEYS["en"])) == len(KEYS["en"])
