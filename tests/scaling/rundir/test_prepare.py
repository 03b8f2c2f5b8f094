"""run.json: once and for one spec."""

import io

import pytest

from arch.errors import InputError
from data.files import new_directory, write_json
from scaling.cli.request import Request
from scaling.rundir.lock import run_lock
from scaling.rundir.prepare import count_again, prepare_run
from scaling.rundir.worklist import is_trained
from scaling.study.spec import load_study

from .prepared import one_run, prepare


def test_run_json(tmp_path):
    run = one_run()
    rundir = prepare(tmp_path, run)
    record = rundir.record()
    assert record["schema"] == 1 and record["run_id"] == run.run_id and record["spec_hash"] == run.spec_hash
    assert (
        record["model"]["d_model"] == 24 and record["tokenizer"] == "bytes" and record["study"] == "four-architectures"
    )
    assert record["cost"]["flops_per_token_train"].keys() == {"exact", "paper", "6nd"}
    assert record["versions"]["torch"] and record["corpus_fingerprint"] == "f" * 64
    assert rundir.spec() == run and rundir.spec().spec_hash == record["spec_hash"]


def test_the_same_run_is_accepted_and_left_alone(tmp_path):
    rundir = prepare(tmp_path, one_run())
    before = rundir.run_json.read_bytes()
    prepare(tmp_path, one_run())
    assert rundir.run_json.read_bytes() == before


def test_what_a_run_began_with_is_kept_and_nothing_before(tmp_path):
    """Versions, code and costs of a run that is prepared and has not begun are those of the last command."""
    run = one_run()
    about = (run, "f" * 64)
    prepare_run(tmp_path / "run", *about, {"torch": "1"}, "0" * 64)
    rundir = prepare_run(tmp_path / "run", *about, {"torch": "2"}, "0" * 64)
    assert rundir.record()["versions"] == {"torch": "2"}
    rundir.write_status("running", 0, 0, None, None)
    prepare_run(tmp_path / "run", *about, {"torch": "3"}, "0" * 64)
    assert rundir.record()["versions"] == {"torch": "2"}


def test_the_stage_of_a_run_that_has_begun_may_change_among_1_to_3(tmp_path):
    def at_stage(stage):
        return one_run().model_copy(update={"training": one_run().training.model_copy(update={"zero_stage": stage})})

    rundir = prepare(tmp_path, at_stage(1))
    for state, stage in (("running", 2), ("done", 1)):
        rundir.write_status(state, 1, 1, None, None)
        prepare(tmp_path, at_stage(stage))
        assert rundir.spec().training.zero_stage == 2, "a run that is done keeps what it was trained at"
    with pytest.raises(InputError, match=r"was written with training.zero_stage=2 .*, this study asks for 0"):
        prepare(tmp_path, at_stage(0))


def with_source(run, source):
    return run.model_copy(update={"corpus": run.corpus.model_copy(update={"source": [source]})})


def test_a_run_whose_text_moved_is_the_same_run(tmp_path):
    here, there = with_source(one_run(), "/here"), with_source(one_run(), "/there")
    rundir = prepare(tmp_path, here)
    prepare(tmp_path, there)
    assert rundir.spec() == there and rundir.record()["spec_hash"] == here.spec_hash
    for name, spec_hash in (("done", here.spec_hash), ("another", "0" * 16)):
        with new_directory(rundir.checkpoint(there.n_steps), {"step": there.n_steps, "spec_hash": spec_hash}):
            pass
        rundir.write_status("done", there.n_steps, there.n_tokens, None, None)
        assert is_trained(there, rundir) == is_trained(here, rundir) == (name == "done")


def test_a_record_whose_hash_is_not_of_its_spec_is_refused(tmp_path):
    """As one that was changed, or that a version with another rule for hashes wrote."""
    rundir = prepare(tmp_path, one_run())
    write_json(rundir.run_json, rundir.record() | {"spec_hash": "0" * 16})
    with pytest.raises(InputError, match=r"spec_hash 0000000000000000 is not that of its spec, .*: remove the run dir"):
        rundir.spec()
    with pytest.raises(InputError, match="was written with spec_hash 0000000000000000, this study asks for"):
        prepare(tmp_path, one_run())


def test_what_decides_no_number_may_change_between_starts(tmp_path):
    prepare(tmp_path, one_run())
    rundir = prepare(tmp_path, one_run().model_copy(update={"recompute": True}))
    assert rundir.spec().recompute and rundir.spec().spec_hash == one_run().spec_hash


def test_a_run_that_was_trained_unchecked_says_so_for_good(tmp_path):
    run = one_run().model_copy(update={"checked": False})
    rundir = prepare(tmp_path, run)
    assert prepare(tmp_path, one_run()).spec().checked  # it has not begun, and is checked now
    prepare(tmp_path, run)
    rundir.write_status("done", run.n_steps, run.n_tokens, None, None)
    assert not prepare(tmp_path, one_run()).spec().checked


def test_counts_of_flop_follow_the_counter(tmp_path):
    """As after a plugin's costs were corrected: in every command that writes into the study."""
    study = load_study("four-architectures", out=tmp_path)
    run = next(run for run in study.runs() if run.run_id == one_run().run_id)
    rundir = prepare(study.directory / "runs", run)
    right = rundir.record()
    flops = right["cost"]["flops_per_token_train"]
    wrong = right["cost"] | {"flops_per_token_train": {"exact": 1234.0, "6nd": flops["6nd"]}}
    write_json(rundir.run_json, right | {"cost": wrong})
    with run_lock(rundir.path):
        assert count_again(study.directory) is None
    with Request(study, stream=(stream := io.StringIO())).writing(rates=False):
        assert rundir.record() == right
    assert f"{run.run_id} 1,234, now {flops['exact']:,.0f} (exact); laws follow" in stream.getvalue()
    assert count_again(study.directory) is None
    other = {"cost": wrong | {"n_params": 5}}  # another model's, whose count was right
    write_json(rundir.run_json, right | other)
    assert count_again(study.directory) is None and rundir.record() == right | other
    write_json(
        rundir.status_json, rundir.status() | {"state": "running"}
    )  # before it has begun it would be written anew
    with pytest.raises(
        InputError, match=f"was written with n_params=5, this study asks for {right['cost']['n_params']}"
    ):
        prepare(study.directory / "runs", run)


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


def test_a_refusal_names_what_differs_and_not_what_is_at_its_default(tmp_path):
    run = load_study("four-architectures", ["grid.archs=[hgrn1]"]).runs("size=14k,seed=0")[0]
    rundir = prepare(tmp_path, run)
    record = rundir.record()
    del record["spec"]["model"]["residual_dtype"], record["spec"]["training"]["eps"]
    write_json(rundir.run_json, record)
    assert rundir.spec().spec_hash == run.spec_hash
    faster = run.model_copy(update={"training": run.training.model_copy(update={"lr": 0.5})})
    with pytest.raises(InputError, match=r"with training\.lr=.* this study asks for 0\.5"):
        prepare(tmp_path, faster)
    real = run.model_copy(update={"model": run.config.replace(hgrn1_state="real").to_dict()})
    with pytest.raises(InputError, match=r"with model\.hgrn1_state=complex .* this study asks for real"):
        prepare(tmp_path, real)
    prepare(tmp_path, run)  # the same run, whose record is written anew with all fields
    assert rundir.spec() == run
