"""A needle's scores by hand, and the measures of a grid against the paper's numbers."""

from __future__ import annotations

import csv
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from analysis.evals.niah.prompts import CLASSIC, KEYS, fact
from analysis.evals.niah.scores import accuracy_at, accuracy_up_to, measures, penalty, score, shares, weights
from analysis.evals.niah.settings import NiahSettings


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (CLASSIC.statement, 10),
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
    assert score(answer, CLASSIC.answer, CLASSIC.question) == expected


def test_a_number_counts_whole_or_not_at_all():
    needle = fact(7, "x")
    assert score(f"It is {needle.answer}.", needle.answer, needle.question) == 10
    assert score(needle.answer + "1", needle.answer, needle.question) == 1
    assert score(needle.answer[:-1], needle.answer, needle.question) == 1
    assert score(needle.question, needle.answer, needle.question) == 1


def test_an_answer_within_its_question_is_no_answer():
    with pytest.raises(ValueError, match="no word that the question has not"):
        score("no", "San Francisco", CLASSIC.question)


def test_facts_come_from_their_seed():
    facts = [fact(7, str(seed)) for seed in range(300)]
    assert facts == [fact(7, str(seed)) for seed in range(300)]
    assert len({needle.answer for needle in facts}) == 300 and all(len(needle.answer) == 7 for needle in facts)
    assert len({needle.question for needle in facts}) == len(KEYS)
    assert all(needle.answer in needle.statement and needle.answer not in needle.question for needle in facts)


def test_keys_are_all_of_one_length():
    """Needles of a length then have equally many bytes, and make one batch."""
    assert {len(key) for key in KEYS} == {5} and len(set(KEYS)) == len(KEYS)


TABLES = Path(__file__).resolve().parents[5] / "shared/reference/csv"
PAPER = NiahSettings()


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ([0, 0, 0, 0], 0.0),  # no success
        ([1, 1, 1, 1], 1.0),  # all succeeded
        ([1, 1, 0, 0], 2**-0.5),  # runs 11 00: n = 2, (1 - 2) / 2 = -1/2
        ([0, 1, 1, 0], 2**-1.0),  # runs 0 11 0: n = 3
        ([1, 0, 1, 0], 2**-1.5),  # four runs
        ([1], 1.0),
        ([0], 0.0),
    ],
)
def test_penalty_by_hand(column, expected):
    assert penalty([bool(x) for x in column]) == pytest.approx(expected, rel=1e-15)


def test_weights_by_hand():
    """Two lengths, alpha_c = 2, and three depths, alpha_d = 3: rows 1 3 9 and 2 6 18."""
    assert weights(2, 3, 2.0, 3.0).tolist() == [[1, 3, 9], [2, 6, 18]]


def test_a_small_grid_by_hand():
    """Lengths 2000 and 4000, three depths, alpha_c = 2, alpha_d = 3, threshold 7; the weights' sum is 39.

    scores 10  1  7   shares 1 0 2/3   success 1 0 1: three runs, p = 1/2
            1 10 10          0 1 1           0 1 1: two runs,   p = 1/sqrt 2
    acc@2k = (1 + 0 + 2/3) / 3 = 5/9, acc@4k = 2/3, their mean 11/18.
    weighted = (1 * 1 + 3 * 0 + 9 * 2/3 + 2 * 0 + 6 * 1 + 18 * 1) / 39 = 31/39.
    score = ((1 + 6) / 2 + 24 / sqrt 2) / 39.
    """
    values = measures(np.array([[10, 1, 7], [1, 10, 10]]), [2000, 4000], 2.0, 3.0, 7)
    assert values["acc_at_2k"] == pytest.approx(100 * 5 / 9)
    assert values["acc_at_4k"] == pytest.approx(100 * 2 / 3)
    assert values["acc_at_8k"] is None and values["acc_at_16k"] is None
    assert values["acc_le_8k"] is None
    assert values["acc_le_4k"] == values["acc_avg"] == pytest.approx(100 * 11 / 18)
    assert values["weighted_avg_acc"] == pytest.approx(100 * 31 / 39)
    assert values["niah_score"] == pytest.approx(100 * (3.5 + 24 / math.sqrt(2)) / 39)


def paper_measures(scores):
    return measures(scores, PAPER.grid_lengths(), PAPER.alpha_c, PAPER.alpha_d, PAPER.threshold)


def test_perfect_empty_and_striped_grids():
    shape = (PAPER.n_lengths, PAPER.n_depths)
    assert {round(v, 9) for v in paper_measures(np.full(shape, 10)).values()} == {100.0}
    assert set(paper_measures(np.full(shape, 1)).values()) == {0.0}
    # every second depth from the first on: 18 of 35, 35 runs, p = 2^-17 in every column
    striped = np.ones(shape, dtype=int)
    striped[:, ::2] = 10
    values = paper_measures(striped)
    assert values["acc_avg"] == values["acc_at_8k"] == pytest.approx(100 * 18 / 35)
    deep = sum(1.01**i for i in range(0, 35, 2)) / sum(1.01**i for i in range(35))
    assert values["weighted_avg_acc"] == pytest.approx(100 * deep)
    assert values["niah_score"] == pytest.approx(100 * deep * 2**-17)
    # every second length: full columns are not penalised
    values = paper_measures(striped.T)
    assert values["niah_score"] == pytest.approx(values["weighted_avg_acc"]) == pytest.approx(100 * deep)


def test_a_missed_needle_costs_more_where_it_is_long_or_deep():
    grid = np.full((5, 5), 10)
    values = []
    for place in [(0, 0), (4, 0), (4, 4)]:
        missed = grid.copy()
        missed[place] = 1
        values.append(measures(missed, list(range(1000, 6000, 1000)), 1.01, 1.01, 7)["weighted_avg_acc"])
    assert all(a > b for a, b in pairwise(values))


def test_the_papers_grid():
    """35 lengths from 1,000 to 16,000 and the four that the tables name; 8 and 17 of them up to the two cuts."""
    lengths = PAPER.grid_lengths()
    assert len(lengths) == 35 and lengths[0] == 1000 and lengths[-1] == 16000
    assert (sum(n <= 4096 for n in lengths), sum(n <= 8192 for n in lengths)) == (8, 17)
    by_length = np.tile(np.arange(35)[:, None], (1, 35)) % 9 + 1  # tells the column by its score
    for target, expected in ((2000, 1882), (4000, 4088), (8000, 8059), (16000, 16000)):
        column = lengths.index(expected)
        assert accuracy_at(by_length, lengths, target) == pytest.approx(100 * shares(by_length)[column, 0])
    assert accuracy_up_to(by_length, lengths, 999) is None
    assert PAPER.grid_depths()[:3] == [0, 3, 6] and PAPER.grid_depths()[-1] == 100


def test_every_printed_accuracy_is_a_count_over_35_depths_and_9_steps():
    """All 352 acc@length cells of tables 12 to 14 round from k / 315: 35 depths, scores 1 to 10 read as (q - 1) / 9."""
    if not TABLES.is_dir():
        pytest.skip(f"{TABLES} is not there")
    cells = []
    for path in sorted(TABLES.glob("003_table1[234]_*.csv")):
        with open(path, newline="") as handle:
            cells += [float(row[key]) for row in csv.DictReader(handle) for key in row if key.startswith("acc_at_")]
    assert len(cells) == 352
    possible = {round(100 * k / 315, 1) for k in range(316)}
    assert set(cells) <= possible
    assert not set(cells) <= {round(100 * k / 350, 1) for k in range(351)}  # q / 10 does not do
