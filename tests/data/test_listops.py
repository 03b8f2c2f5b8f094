"""ListOps: values and shapes by a naive reading of the tokens, and the statistics of a naive generator of the rules."""

import random
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from data.listops import END, LENGTHS, MAX_ARGUMENTS, MAX_DEPTH, OPERATORS, examples

N = 200


class Read(NamedTuple):
    value: int
    depth: int
    n_arguments: list[int]
    operators: list[int]


def value_of(operator: str, arguments: list[int]) -> int:
    return {"MIN": min(arguments), "MAX": max(arguments), "MED": int(np.median(arguments)), "SM": sum(arguments) % 10}[
        operator
    ]


def read(tokens: list[int]) -> Read:
    """A list, by a stack; the whole of `tokens` is to be one list."""
    stack: list[list[int]] = [[]]
    counts, operators, depth = [], [], 0
    for place, token in enumerate(tokens):
        if token == END:
            operator, *arguments = stack.pop()
            counts.append(len(arguments))
            operators.append(operator)
            stack[-1].append(value_of(OPERATORS[operator - 10], arguments))
        elif token >= 10:
            stack.append([token])
            depth = max(depth, len(stack))
        else:
            stack[-1].append(token)
            depth = max(depth, len(stack))
        assert len(stack) > 1 or place == len(tokens) - 1
    ((value,),) = stack
    return Read(value, depth, counts, operators)


def naive_lists(n: int) -> list[list[int]]:
    """Lists of the published rules, drawn one element after another."""
    rng = random.Random(0)

    def element(depth: int) -> list[int]:
        if depth == MAX_DEPTH or rng.random() >= 0.25:
            return [rng.randrange(10)]
        arguments = [element(depth + 1) for _ in range(rng.randint(2, MAX_ARGUMENTS))]
        return [rng.randrange(10, 14), *(token for argument in arguments for token in argument), END]

    lists: list[list[int]] = []
    while len(lists) < n:
        if len(drawn := element(1)) in LENGTHS:
            lists.append(drawn)
    return lists


def lists_of(tokens: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
    return [tokens[a:b].tolist() for a, b in pairwise(np.concatenate([[0], np.cumsum(lengths)]))]


def test_lists_have_the_published_shape_and_the_value_of_a_naive_reading():
    tokens, lengths, values = examples(0, N, 0)
    lists = lists_of(tokens, lengths)
    parsed = [read(tokens) for tokens in lists]
    assert [each.value for each in parsed] == values.tolist()
    assert all(len(tokens) in LENGTHS for tokens in lists) and len({tuple(tokens) for tokens in lists}) == N
    assert max(each.depth for each in parsed) == MAX_DEPTH
    counts = np.bincount([n for each in parsed for n in each.n_arguments])
    assert np.flatnonzero(counts).tolist() == list(range(2, MAX_ARGUMENTS + 1))
    operators = np.bincount([operator for each in parsed for operator in each.operators])[10:]
    assert np.allclose(operators / operators.sum(), 1 / 4, atol=0.01)


def test_lengths_and_values_are_those_of_a_naive_generator():
    lists, (tokens, lengths, values) = naive_lists(N), examples(1, 400, 0)
    naive = np.array([len(tokens) for tokens in lists])
    error = np.hypot(naive.std() / N**0.5, lengths.std() / len(lengths) ** 0.5)
    assert abs(naive.mean() - lengths.mean()) < 3 * error
    expected = np.bincount([read(tokens).value for tokens in lists], minlength=10) / N
    share = np.bincount(values, minlength=10) / len(values)
    assert (np.abs(share - expected) < 3 * (expected * (1 - expected) * (1 / N + 1 / len(values))) ** 0.5).all()
    digits = np.bincount(tokens, minlength=END)[:10]
    assert np.allclose(digits / digits.sum(), 1 / 10, atol=0.002)


def test_units_follow_from_seed_and_number():
    few, more, other = examples(3, 20, 5), examples(3, 200, 5), examples(3, 20, 6)
    assert all(np.array_equal(a, b[: len(a)]) for a, b in zip(few, more, strict=True))
    assert len(few[1]) == 20 and few[0][:500].tolist() != other[0][:500].tolist()
