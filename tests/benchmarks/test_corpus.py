import re
from pathlib import Path

import pytest

from arch.errors import InputError
from benchmarks.corpus import main


def test_slices_are_compared_and_the_whole_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    main(["synthetic:0:1200000", "--tokenizer", "bpe:300", "--mb", "1"])
    head, first, median, whole = capsys.readouterr().out.splitlines()
    assert head.startswith("bpe:300, ")
    assert re.match(r"slice 1: 1\.0 MB, tiktoken [\d.]+ \([\d.]+\), corpus [\d.]+ \([\d.]+\), ratio [\d.]+ ", first)
    assert median.startswith("median ratio") and re.match(r"whole corpus: 1\.0 MB, [\d,]+ tokens in ", whole)


def test_a_tokenizer_that_tiktoken_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--tokenizer: bytes is no tokenizer of tiktoken"):
        main(["synthetic:0:1200000", "--tokenizer", "bytes"])
    with pytest.raises(InputError, match="does not exist"):
        main([str(tmp_path / "nowhere"), "--tokenizer", "bpe:300"])
