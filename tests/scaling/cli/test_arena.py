"""The recipes of the Long Range Arena begin from hand-made files in the published layouts, as any study does."""

import pytest
import yaml

from scaling.cli.main import main
from scaling.study.file import PACKAGED
from tests.commands import in_this_process
from tests.data.test_arena import write_images, write_pairs, write_reviews


@pytest.mark.parametrize("name", ["lra-text", "lra-retrieval", "lra-image"])
def test_a_recipe_trains_two_steps_and_prints_its_table(name, tmp_path):
    for folder in ("lra_release/tsv_data", "cifar-10-batches-bin"):
        (tmp_path / folder).mkdir(parents=True)
    write_reviews(tmp_path / "aclImdb")
    write_pairs(tmp_path / "lra_release/tsv_data")
    write_images(tmp_path / "cifar-10-batches-bin")
    study = yaml.safe_load((PACKAGED / f"{name}.yaml").read_text(encoding="utf-8"))
    row = {"lra-text": 4096, "lra-retrieval": 8000}.get(name, 1024)
    sizes = {"d": {"n_layers": 1, "d_model": 16, "n_heads": 1, "d_ffn": 32}}
    study["grid"] |= {"archs": ["hgrn2"], "sizes": sizes, "seeds": [0]}
    del study["grid"]["axes"]  # table 13
    study["training"] |= {
        "n_tokens": 4 * row,
        "batch_tokens": 2 * row,
        "warmup_tokens": 0,
        "precision": "fp32",
        "threads": 1,
    }
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")
    result = in_this_process(main, "run", "small.yaml", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    rows = result.stdout.partition("test accuracy, %")[2].partition("\n\n")[0].splitlines()[2:]
    assert [row.split()[0] for row in rows[:3]] == ["HGRN2", "HGRN", "HGRN2"]  # its own, then published ones
