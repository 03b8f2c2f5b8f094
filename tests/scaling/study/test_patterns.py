"""Hybrids in a study file: `architectures`, their runs' records, and what is refused."""

import json
import os
import signal

import pytest

from arch.errors import InputError
from arch.model.lm import load_model
from arch.registry import ARCHITECTURES, register_pattern
from scaling.check import CHECKS, check_models
from scaling.checkpoints.export import export_hf
from scaling.rundir.directory import RunDir
from scaling.study.spec import load_study

from .. import forks
from ..eighth import ROOT
from ..small_runs import BATCH, exact_rows, make_run, train

pytestmark = pytest.mark.usefixtures("registered")
STUDY = """
name: hybrids
corpus: {source: "synthetic:0:200000"}
architectures:
  hgrn2-3to1: {layers: [hgrn2, hgrn2, hgrn2, llama], label: "HGRN2 3:1", llama: {n_heads: 4}}
grid: {archs: [hgrn2, hgrn2-3to1], sizes: [{from: 30k, to: 100k, count: 2, layers: 4}]}
model: {context_length: 64}
training: {n_tokens: 20480, batch_tokens: 512, lr: 3e-3}
"""
HYBRID = ["hgrn2", "hgrn2", "llama"]


def study(tmp_path, *changes):
    text = STUDY
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (tmp_path / "hybrids.yaml").write_text(text)
    return load_study(tmp_path / "hybrids.yaml")


def test_a_study_names_its_patterns(tmp_path):
    spec = study(tmp_path)
    runs = [run for run in spec.runs() if run.arch == "hgrn2-3to1"]
    assert [run.run_id for run in runs] == ["hgrn2-3to1-n30k-c64-s0", "hgrn2-3to1-n100k-c64-s0"]
    assert ARCHITECTURES["hgrn2-3to1"].label == "HGRN2 3:1"
    for run in runs:
        heads = {kind.arch: kind.n_heads for kind in run.config.kinds}
        assert heads["llama"] == 4 and heads["hgrn2"] in (3, 6) and run.config.n_layers == 4 and not run.plugins
    check_models(runs, "study.yaml")
    kept = type(runs[0]).model_validate(json.loads(json.dumps(runs[0].model_dump(mode="json"))))
    assert kept.config == runs[0].config and kept.spec_hash == runs[0].spec_hash


def test_two_studies_may_give_a_name_two_meanings(tmp_path):
    first = study(tmp_path)
    hashes = [run.spec_hash for run in first.runs()]
    study(tmp_path, ("llama: {n_heads: 4}", "llama: {n_heads: 1}"))
    assert [run.spec_hash for run in first.runs()] == hashes


def test_changes_reach_the_kinds_that_read_them(tmp_path):
    spec = study(tmp_path, ("{context_length: 64}", "{context_length: 64, rope_base: 500, input_gate: own}"))
    run = spec.runs("arch=hgrn2-3to1,size=n30k")[0]
    hgrn2, llama = run.config.kinds
    assert (hgrn2.options.input_gate, llama.options.rope_base) == ("own", 500)
    changed = load_study(spec.path, ["model.rope_base=600", "model.input_gate=own"]).runs("arch=hgrn2-3to1,size=n30k")
    assert changed[0].run_id.endswith("-s0-rope_base600") and changed[0].config.kinds[1].options.rope_base == 600


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("[hgrn2, hgrn2, hgrn2, llama]", "[hgrn2, hgrn3]", "architectures.hgrn2-3to1: unknown architecture 'hgrn3'"),
        ("hgrn2, llama]", "hgrn2, softmx]", r"unknown architecture 'softmx' \(did you mean 'softmax'\?\)$"),
        ("[hgrn2, hgrn2, hgrn2, llama]", "[]", "architectures.hgrn2-3to1.layers: must name at least one$"),
        (
            '{layers: [hgrn2, hgrn2, hgrn2, llama], label: "HGRN2 3:1", llama: {n_heads: 4}}',
            "[hgrn2, llama]",
            "architectures.hgrn2-3to1: must be keys and values below a name",
        ),
        ("llama: {n_heads: 4}", "llama: {n_heads: 4}, LLaMA: {norm: rms}", "llama and LLaMA are the same architecture"),
        ('label: "HGRN2 3:1"', 'label: ""', "label '': a label is a line of 1 to 60 characters"),
        ('label: "HGRN2 3:1"', 'label: "<b>x</b>"', "without < > |"),
        ('label: "HGRN2 3:1"', 'label: "a\\nb"', "label 'a.*nb': a label is a line of 1 to 60 characters"),
        (
            '"HGRN2 3:1"',
            '"X"}\n  g: {label: x, layers: [tnl, llama]',
            "architectures.g.label: 'x' is also hgrn2-3to1's",
        ),
        ("  hgrn2-3to1:", "  " + "h" * 41 + ":", "has at most 40 characters$"),
        (
            "[hgrn2, hgrn2, hgrn2, llama]",
            "[hgrn2, hgrn2, cosformer2, llama]",
            "cosformer2 encodes positions before all",
        ),
        ("llama: {n_heads: 4}", "llama: {n_head: 4}", "hgrn2-3to1.llama.n_head: is unknown .did you mean 'n_heads'"),
        ("llama: {n_heads: 4}", "llama: {gate_rank: 4}", "llama.gate_rank: means nothing to llama"),
        ("llama: {n_heads: 4}", "llama: {d_model: 4}", "llama.d_model: is of the whole model: give it in model"),
        ("llama: {n_heads: 4}", "tnl: {n_heads: 4}", "tnl is none of its layers: hgrn2, llama"),
        ("llama: {n_heads: 4}", "lama: {n_heads: 4}", "unknown key 'lama'"),
        ("{layers: [hgrn2", "{layer: [hgrn2", "hgrn2-3to1: unknown key 'layer' .did you mean 'layers'"),
        ("  hgrn2-3to1:", "  tnl:", "'tnl' is the name of an architecture already"),
        ("  hgrn2-3to1:", "  softmax:", "'softmax' is the name of an architecture already"),
        ('label: "HGRN2 3:1"', "label: LLaMA", "hgrn2-3to1: 'LLaMA' is the name of an architecture already"),
        ("  hgrn2-3to1:", '  a: {layers: [tnl, llama], label: "HGRN2 3:1"}\n  hgrn2-3to1:', "3:1' is also a's"),
        ("  hgrn2-3to1:", "  410m:", "'410m' is the name of a size"),
        ("{layers: [hgrn2, hgrn2, hgrn2, llama], ", "{", "hgrn2-3to1.layers"),
        (
            "[{from: 30k, to: 100k, count: 2, layers: 4}]",
            "[98k]",
            r"hgrn2-3to1/98k: model.n_layers=2: .* multiple of 4",
        ),
        (
            '[hgrn2, hgrn2, hgrn2, llama], label: "HGRN2 3:1", llama: {n_heads: 4}',
            "[hgrn2, hgrn2]",
            "hgrn2-n30k-c64-s0 and hgrn2-3to1-n30k-c64-s0 are the same model: leave out one",
        ),
        (
            '[hgrn2, hgrn2, hgrn2, llama], label: "HGRN2 3:1", llama: {n_heads: 4}',
            "[hgrn2, hgrn2], hgrn2: {chunk_size: 32}",
            "hgrn2-n30k-c64-s0 and hgrn2-3to1-n30k-c64-s0 are the same model: leave out one",
        ),
    ],
)
def test_what_is_no_pattern_ends_in_one_line(tmp_path, old, new, message):
    with pytest.raises(InputError, match=message) as error:
        study(tmp_path, (old, new))
    assert "\n" not in str(error.value) and " more)" not in str(error.value)


def hybrid_run(tmp_path, name):
    register_pattern("mix", HYBRID)
    settings = {"state_every_tokens": 5 * BATCH, "n_steps": 20, "checkpoint_tokens": [20 * BATCH]}
    return make_run(tmp_path, "mix", name=name, shape={"n_layers": 3}, **settings)


def test_a_hybrid_resumes_to_the_same_bits_and_its_checkpoint_travels(tmp_path):
    """The processes know nothing of the pattern but what the run's record says."""
    whole, killed = hybrid_run(tmp_path, "whole"), hybrid_run(tmp_path, "killed")
    assert train(whole)[0] == 0
    assert train(killed, KILL_AT_WRITE="state:2")[0] == -signal.SIGKILL
    code, out, err = train(killed)
    assert code == 0 and "step 5 of 20" in out, out + err
    assert exact_rows(killed) == exact_rows(whole)
    weights = [run.checkpoints()[-1].path / "model.safetensors" for run in (whole, killed)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    ARCHITECTURES.pop("mix")
    assert RunDir(whole.path).spec().config == load_model(weights[0].parent).model_config
    ARCHITECTURES.pop("mix")
    export_hf(weights[0].parent, tmp_path / "exported")
    assert json.loads((tmp_path / "exported" / "config.json").read_text())["layers"] == HYBRID


def test_the_page_of_mixers_and_hybrids_does_what_it_says(tmp_path):
    """Its two files, and its checks of both architectures."""
    page = (ROOT / "docs" / "adding.md").read_text()
    for name, language in (("average.py", "python"), ("average.yaml", "yaml")):
        text = page.partition(f"```{language}\n# {name}\n")[2].partition("```\n")[0]
        assert 5 < text.count("\n") < 41
        (tmp_path / name).write_text(text)

    def run(*words):
        return forks.run(*words, folder=tmp_path, PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))

    for words in (["average", "--plugin", "average"], ["average-3to1", "--study", "average.yaml"]):
        assert " ".join(["python -m scaling.check", *words]) in page
        code, out, err = run("scaling.check", *words)
        assert code == 0 and out.count("  ok  ") == len(CHECKS), out + err
    (tmp_path / "recall.yaml").write_text(
        "name: r\narchitectures: {a2: {layers: [average, softmax]}}\narchs: [a2, average]\n"
        "problems: [{length: 16, pairs: 2}]\nwidths: [16]\nrates: [3e-3]\n"
    )
    for words, says in (
        (["plan", "average.yaml"], "average-3to1-n60k-c128-s0"),
        (["data", "average.yaml"], "tokens to train on"),  # refuses a corpus that is too small for a run
        (["recall", "recall.yaml", "--plugin", "average", "--dry-run"], "would train 2 of 2 units"),
    ):
        code, out, err = run("scaling", *words)
        assert code == 0 and says in out, out + err
