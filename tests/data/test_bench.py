import re
from pathlib import Path

import pytest

from arch.errors import InputError
from data.bench import main


def test_slices_are_compared_and_the_whole_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    main(["synthetic:0:1200000", "--tokenizer", "bpe:300", "--mb", "1"])
    head, first, median, whole = capsys.readouterr().out.splitlines()
    assert head.startswith("bpe:300, ")
    assert re.match(r"slice 1: 1\.0 MB, tiktoken [\d.]+ \([\d.]+\), corpus [\d.]+ \([\d.]+\), ratio [\d.]+ ", first)
    assert median.startswith("median ratio") and re.match(r"whole corpus: 1\.0 MB, [\d,]+ tokens in ", whole)


def test_what_cannot_be_compared_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--tokenizer: bytes is none of tiktoken's"):
        main(["synthetic:0:1200000", "--tokenizer", "bytes"])
    with pytest.raises(InputError, match="does not exist"):
        main([str(tmp_path / "nowhere"), "--tokenizer", "bpe:300"])
