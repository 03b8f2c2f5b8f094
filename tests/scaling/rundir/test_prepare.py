"""run.json: once and for one spec."""

import pytest

from arch.errors import InputError
from data.files import new_directory, write_json
from flops import cost_table
from scaling.rundir.prepare import prepare_run
from scaling.rundir.versions import package_versions
from scaling.rundir.worklist import is_trained
from scaling.study.spec import load_study

from .prepared import one_run, prepare


def test_run_json(tmp_path):
    run = one_run()
    rundir = prepare(tmp_path, run)
    record = rundir.record()
    assert record["schema"] == 1 and record["run_id"] == run.run_id and record["spec_hash"] == run.spec_hash
    assert record["model"]["d_model"] == 24 and record["tokenizer"] == "bytes" and record["study"] == "quickstart"
    assert record["cost"]["flops_per_token_train"].keys() == {"exact", "paper", "6nd"}
    assert record["versions"]["torch"] and record["corpus_fingerprint"] == "f" * 64
    assert rundir.spec() == run and rundir.spec().spec_hash == record["spec_hash"]


def test_the_same_run_is_accepted_and_left_alone(tmp_path):
    rundir = prepare(tmp_path, one_run())
    before = rundir.run_json.read_bytes()
    prepare(tmp_path, one_run())
    assert rundir.run_json.read_bytes() == before


def test_a_run_that_was_written_with_an_option_its_architecture_does_not_read(tmp_path):
    """Earlier versions gave every model rope_base and its like, and hashed them; of a study of several architectures
    that set one, TNL's run is the same run."""
    run = one_run()
    earlier = run.model_copy(update={"model": run.model | {"rope_base": 5e5, "tpe_dim": 12, "tpe_residual": True}})
    assert earlier.spec_hash != run.spec_hash and earlier.config == run.config
    rundir = prepare(tmp_path, earlier)
    prepare(tmp_path, run)
    assert rundir.spec().spec_hash == earlier.spec_hash == rundir.record()["spec_hash"]
    assert {earlier.spec_hash, earlier.earlier_hash} <= set(rundir.hashes(run))


def with_source(run, source):
    return run.model_copy(update={"corpus": run.corpus.model_copy(update={"source": [source]})})


def test_a_run_whose_text_moved_is_the_same_run(tmp_path):
    """Also where an earlier version wrote it down, with the text's place in the hashes of run and corpus."""
    here, there = with_source(one_run(), "/here"), with_source(one_run(), "/there")
    rundir = prepare(tmp_path, here)
    record = rundir.record()
    prepare(tmp_path, there)
    assert rundir.record() == record  # where it was first is kept
    write_json(rundir.run_json, record | {"spec_hash": here.earlier_hash})
    prepare(tmp_path, there)
    assert rundir.spec() == here and rundir.record()["spec_hash"] == here.earlier_hash
    for name, spec_hash in (("done", here.earlier_hash), ("another", "0" * 16)):
        with new_directory(rundir.checkpoint(there.n_steps), {"step": there.n_steps, "spec_hash": spec_hash}):
            pass
        rundir.write_status("done", there.n_steps, there.n_tokens, None, None)
        assert is_trained(there, rundir) == is_trained(here, rundir) == (name == "done")
    other = there.model_copy(update={"seed": 7})
    for spec_hash in ("0" * 16, other.earlier_hash):
        write_json(rundir.run_json, record | {"spec_hash": spec_hash})
        with pytest.raises(InputError, match="was written with"):
            prepare(tmp_path, there)


def test_a_corpus_is_known_by_what_an_earlier_version_called_it(tmp_path):
    run = with_source(one_run(), "/here")
    rundir = prepare(tmp_path, run)
    asked = []

    def known(fingerprint, source):
        asked.append((fingerprint, source))
        return fingerprint == "f" * 64

    moved, rest = with_source(run, "/there"), (cost_table(run.config), "0" * 64, package_versions())
    prepare_run(rundir.path, moved, *rest, known)
    assert asked == [("f" * 64, ["/here"])] and rundir.record()["corpus_fingerprint"] == "f" * 64
    write_json(rundir.run_json, rundir.record() | {"corpus_fingerprint": "e" * 64})
    with pytest.raises(InputError, match="corpus_fingerprint eee"):
        prepare_run(rundir.path, moved, *rest, known)


def test_what_decides_no_number_may_change_between_starts(tmp_path):
    prepare(tmp_path, one_run())
    rundir = prepare(tmp_path, one_run().model_copy(update={"recompute": True}))
    assert rundir.spec().recompute and rundir.spec().spec_hash == one_run().spec_hash


def test_another_spec_or_corpus_is_refused_with_both_hashes(tmp_path):
    run = one_run()
    rundir = prepare(tmp_path, run)
    before = rundir.run_json.read_bytes()
    other = run.model_copy(update={"training": run.training.model_copy(update={"lr": 0.5})})
    assert other.run_id == run.run_id and other.spec_hash != run.spec_hash
    with pytest.raises(InputError) as error:
        prepare(tmp_path, other)
    first = run.training.lr
    assert f"with training.lr={first} (spec_hash {run.spec_hash}), this study asks for 0.5 ({other.spec_hash})" in str(
        error.value
    )
    with pytest.raises(InputError, match="corpus_fingerprint"):
        prepare(tmp_path, run, "0" * 64)
    assert rundir.run_json.read_bytes() == before


def test_a_run_of_an_earlier_version_is_told_by_what_differs(tmp_path):
    """Not by fields that its run.json has under another name, or did not have and means by their default."""
    run = load_study("quickstart", ["grid.archs=[hgrn1]"]).runs("size=14k,seed=0")[0]
    rundir = prepare(tmp_path, run)
    record = rundir.record()
    del record["spec"]["model"]["hgrn1_state"], record["spec"]["model"]["residual_dtype"]
    record["spec"]["model"]["hgrn1_complex"] = True
    write_json(rundir.run_json, record)
    assert rundir.spec().spec_hash == run.spec_hash
    faster = run.model_copy(update={"training": run.training.model_copy(update={"lr": 0.5})})
    with pytest.raises(InputError, match=r"with training\.lr=.* this study asks for 0\.5"):
        prepare(tmp_path, faster)
    real = run.model_copy(update={"model": run.config.replace(hgrn1_state="real").to_dict()})
    with pytest.raises(InputError, match=r"with model\.hgrn1_state=complex .* this study asks for real"):
        prepare(tmp_path, real)
    prepare(tmp_path, run)  # the same run, which is written anew by the names of today
    assert rundir.spec() == run


def test_tnl_of_an_earlier_version_is_told_by_its_slopes(tmp_path):
    run = one_run()
    before = run.model_copy(update={"model": run.config.replace(decay_slopes="paper").to_dict()})
    rundir = prepare(tmp_path, before)
    record = rundir.record()
    del record["spec"]["model"]["decay_slopes"]
    write_json(rundir.run_json, record)
    with pytest.raises(InputError, match=r"with model\.decay_slopes=paper .* this study asks for fixed"):
        prepare(tmp_path, run)
