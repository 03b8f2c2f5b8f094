import hashlib
import itertools

from data.synthetic import MAX_DEPTH, mix64, synthetic_documents, vocabulary


def test_splitmix64_reference_values() -> None:
    # first outputs of splitmix64 started at 0 (Vigna's splitmix64.c): state advances by the golden gamma
    gamma = 0x9E3779B97F4A7C15
    assert [mix64(i * gamma % 2**64) for i in range(2)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


def test_text_is_frozen() -> None:
    text = "".join(synthetic_documents(7, 20_000))
    assert (
        hashlib.sha256(text.encode()).hexdigest() == "527e2aa89e35a3bbb7860bd6f71ec2b42efa94d71fa907ed80113dab9bc05053"
    )


def test_length_prefix_and_seed() -> None:
    short, long = list(synthetic_documents(1, 5_000)), list(synthetic_documents(1, 50_000))
    assert sum(map(len, long)) == 50_000 and all(text.isascii() for text in long)
    assert "".join(long).startswith("".join(short))
    assert len(set(long)) == len(long)
    assert "".join(synthetic_documents(2, 5_000)) != "".join(short)


def test_brackets_nest_and_close() -> None:
    deepest = 0
    for text in itertools.islice(synthetic_documents(3, 10**9), 50):
        stack: list[str] = []
        for c in text:
            if c in "([{":
                stack.append(c)
            elif c in ")]}":
                assert stack.pop() + c in ("()", "[]", "{}")
            deepest = max(deepest, len(stack))
        assert not stack
    assert deepest == MAX_DEPTH


def test_two_words_tell_the_next() -> None:
    words = vocabulary(0)
    assert len(set(words)) == len(words)
    plain = str.maketrans("", "", "()[]{}.\n")
    followers: dict[tuple[str, str], set[str]] = {}
    for text in synthetic_documents(0, 200_000):
        sequence = text.translate(plain).split()[:-1]  # the last word may be cut
        assert set(sequence) <= set(words)
        for a, b, c in zip(sequence, sequence[1:], sequence[2:], strict=False):
            followers.setdefault((a, b), set()).add(c)
    assert max(map(len, followers.values())) <= 4 and len(followers) > 300
