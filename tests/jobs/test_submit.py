"""`scaling submit` and its sisters against a real scheduler. Its partition is down: nothing here trains."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from arch.errors import InputError
from data.checks import check_tokenizer
from data.files import read_json
from jobs import slurm as commands
from scaling.cli.submit import tokenizers_of
from scaling.study.file import PACKAGED
from scaling.study.jobs_schema import Cluster
from tests.commands import ROOT

from .cluster import PATH, cluster, needs_slurm
from .studies import CPUS, GPUS, study_file
from .test_render import INHERITED

pytestmark = needs_slurm


@pytest.fixture(scope="module")
def slurm():
    with cluster(nodes=2, state="DOWN") as held:
        yield held


@pytest.fixture
def scaling(slurm):
    """Runs a command of `scaling`, here (others below start processes); afterwards nothing is left in the queue."""
    slurm.wait_for_nodes()  # a test may have drained them, or restarted the controller

    def call(*arguments, code=0, warning="", **environment):
        done = slurm.scaling(*arguments, **environment)
        assert done.returncode == code, done.stdout + done.stderr
        assert warning in done.stderr
        if code == 2:
            assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
        return done.stderr if code == 2 else done.stdout

    yield call
    assert {job["job_state"] for job in slurm.jobs()} <= {"PENDING", "CANCELLED"}, "a job was started"
    slurm.run("scancel", "-f", "-u", str(os.getuid()))


def queued(slurm):
    return [line for line in slurm.run("squeue", "-h", "-r", "-o", "%i %E %j").splitlines() if line]


def submitted(scaling, *arguments):
    return json.loads(scaling("submit", *arguments, "--json"))


@pytest.mark.parametrize(("folder", "sign"), [("50%j", "%"), ("back\\slash", "\\")])
def test_a_folder_whose_logs_slurm_cannot_open_is_refused(slurm, scaling, tmp_path, folder, sign):
    """Every job would fail before its first line, and leave no log that says why."""
    study, out = study_file(tmp_path, ["6k"]), tmp_path / folder
    for more in ((), ("--dry-run",)):
        output = scaling("submit", study, "--out", out, *more, code=2)
        assert f"SLURM replaces {sign} in the path of a job's log" in output and not queued(slurm)
    assert not out.exists()


def test_the_whole_chain_is_queued_and_a_second_time_nothing(slurm, scaling, tmp_path):
    study = study_file(tmp_path, ["6k", "98k"], jobs={"cluster": CPUS, "resources": {"98k": {"nodes": 2}}})
    shown = submitted(scaling, study)
    ids = shown["jobs"]
    assert list(ids) == ["corpus", "train-0", "train-1", "eval-0", "eval-1", "finish"]
    lines = {line.split()[0]: line.split()[1] for line in queued(slurm)}
    assert f"afterok:{ids['corpus']}" in lines[f"{ids['train-0']}_0"]
    assert f"aftercorr:{ids['train-1']}" in lines[f"{ids['eval-1']}_0"]
    assert all(f"afterany:{ids[name]}" in lines[ids["finish"]] for name in ids if name != "finish")

    submission = Path(shown["submission"])
    record = read_json(submission / "submission.json")
    assert {name: job["id"] for name, job in record["jobs"].items()} == ids
    assert record["plan"] == shown["plan"] and set(record["spec_hashes"]) == {
        f"{a}-{s}-c64-s0" for a in ("llama", "hgrn2") for s in ("6k", "98k")
    }
    assert (submission / "study.yaml").read_bytes() == study.read_bytes()
    assert (submission / "code" / "scaling" / "cli" / "main.py").read_bytes() == (
        ROOT / "scaling" / "cli" / "main.py"
    ).read_bytes()
    assert (submission / "train-0.elements").read_text().splitlines() == [
        "\t".join(e) for e in shown["plan"]["jobs"][1]["elements"]
    ]

    output = scaling("train", study, code=2)
    assert (
        f"are queued or training on the cluster (jobs {ids['train-0']}, {ids['train-1']}): `scaling cancel`" in output
    )
    again = submitted(scaling, study)
    assert again["jobs"] == {} and again["submission"] is None and again["skipped"] == {"in the queue": 4}
    assert scaling("submit", study).endswith("nothing to submit\n")
    states = {row["run_id"]: row["state"] for row in json.loads(scaling("status", study, "--json"))["runs"]}
    assert set(states.values()) == {"queued"}


def options_of(slurm):
    """What the jobs that wait, and the elements of arrays, were given."""
    jobs = [job for job in slurm.jobs() if job["job_state"] == "PENDING"]
    return sorted(str((job["name"][-7:], job["partition"], job["memory_per_cpu"], job["time_limit"])) for job in jobs)


def test_a_job_that_submits_hands_on_nothing_of_its_own(slurm, scaling, tmp_path):
    """salloc, or a notebook on a node. Every srun died of SLURM_MEM_PER_CPU beside the job's own memory."""
    study = study_file(tmp_path, ["6k"])
    ignored = "warning: the environment's SBATCH_ARRAY_INX, SBATCH_EXPORT, SBATCH_MEM_PER_CPU, SBATCH_PARTITION"
    scaling("submit", study, warning=ignored, **INHERITED)
    inside = options_of(slurm)
    scaling("cancel", study, **INHERITED)
    scaling("submit", study, "--new")
    assert options_of(slurm) == inside and len(inside) == 4
    assert {run["state"] for run in json.loads(scaling("status", study, "--json", **INHERITED))["runs"]} == {"queued"}


def test_only_and_then_the_rest(slurm, scaling, tmp_path):
    study = study_file(tmp_path, ["6k", "98k"])
    first = submitted(scaling, study, "--only", "arch=llama")
    assert {run for job in first["plan"]["jobs"] for element in job["elements"] for run in element} == {
        "llama-6k-c64-s0",
        "llama-98k-c64-s0",
    }
    second = submitted(scaling, study)
    assert second["skipped"] == {"in the queue": 2}
    assert {run for job in second["plan"]["jobs"] for element in job["elements"] for run in element} == {
        "hgrn2-6k-c64-s0",
        "hgrn2-98k-c64-s0",
    }
    after = {line.split()[0]: line.split()[1] for line in queued(slurm)}[second["jobs"]["corpus"]]
    assert f"afterany:{first['jobs']['corpus']}" in after, "two jobs must not write one study at once"


def test_cancel_all_or_some(slurm, scaling, tmp_path):
    packed = study_file(tmp_path, ["6k", "10k"])
    submitted(scaling, packed)
    assert "also works on" in scaling("cancel", packed, "--only", "arch=llama,size=6k", code=2)
    scaling("cancel", packed)
    study = study_file(tmp_path, ["6k", "98k"], name="apart", jobs={"cluster": CPUS | {"pack_minutes": 0}})
    ids = submitted(scaling, study)["jobs"]
    result = json.loads(scaling("cancel", study, "--only", "arch=llama,size=6k", "--json"))["cancelled"]
    assert len(result) == 2 and {job_id.partition("_")[0] for job_id in result} == {ids["train-0"], ids["eval-0"]}
    assert not {line.split()[0] for line in queued(slurm)} & set(result)
    assert json.loads(scaling("cancel", study, "--json"))["cancelled"] == list(ids.values())
    assert not queued(slurm)
    assert scaling("cancel", study) == "no job is queued or running\n"
    shown = scaling("watch", study)
    assert "job CANCELLED" in shown and f"finish, job {ids['finish']}: 1 cancelled\n" in shown
    assert len(submitted(scaling, study)["jobs"]) == 4, "what was cancelled can be submitted again"


def test_a_changed_study_is_refused_and_new_after_cancel(slurm, scaling, tmp_path):
    study = study_file(tmp_path, ["6k"])
    submitted(scaling, study)
    changed = study_file(tmp_path, ["6k"], training={"n_tokens": 5120, "batch_tokens": 512, "lr": 3e-3})
    before = queued(slurm)
    assert "changed since submission 0001 (run llama-6k-c64-s0 and 1 more)" in scaling("submit", changed, code=2)
    assert "still has jobs" in scaling("submit", changed, "--new", code=2)
    assert queued(slurm) == before
    scaling("cancel", changed)
    slurm.run("scontrol", "update", "NodeName=n[1-2]", "State=DRAIN", "Reason=test")
    try:  # sbatch --test-only would refuse what waits for drained nodes
        assert submitted(scaling, changed, "--new")["submission"].endswith("0002")
    finally:
        slurm.run("scontrol", "update", "NodeName=n[1-2]", "State=RESUME")


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ({"partition": "nowhere"}, "invalid partition specified: nowhere"),
        ({"nodes": 9, "partition": "high"}, "Requested node configuration is not available"),
        ({"sbatch": ["--nonsense"]}, "unrecognized option '--nonsense'"),
    ],
)
def test_what_slurm_refuses_is_shown_in_its_own_words_and_nothing_is_submitted(
    slurm, scaling, tmp_path, profile, message
):
    study = study_file(
        tmp_path,
        ["98k"],
        jobs={"cluster": CPUS | profile, "resources": {"98k": {"nodes": 4 if "nodes" in profile else 1}}},
    )
    output = scaling("submit", study, code=2)
    assert message in output and output.startswith("error: job ")
    assert not queued(slurm) and not (tmp_path / "out").exists()
    assert message in scaling("submit", study, "--dry-run", code=2)


def test_without_slurm(slurm, scaling, tmp_path):
    study = study_file(tmp_path, ["6k"])
    here = os.pathsep.join(
        folder for folder in slurm.environment["PATH"].split(os.pathsep) if not Path(folder, "sbatch").exists()
    )
    for command in ("submit", "cancel"):
        output = scaling(command, study, code=2, PATH=here)
        assert "sbatch is not on the PATH" in output and "`scaling run`" in output
    assert "not validated: no SLURM here" in scaling("submit", study, "--dry-run", PATH=here)
    assert "waiting" in scaling("status", study, PATH=here)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["submit", "--cluster", "nope"], "no cluster profile 'nope'"),
        (["submit", "--dry-run", "--out", "/dev/null/x"], "/dev/null is no directory): give another --out"),
        (["submit", "--out", "/proc/x"], "cannot be written"),
        (["status", "--out", "/dev/null/x"], "/dev/null is no directory): give another --out"),
        (["status", "--every", "inf"], "--every"),
        (["cancel", "--out", "/dev/null/x"], "/dev/null is no directory): give another --out"),
    ],
)
def test_mistakes_are_refused_before_slurm_is_called(slurm, scaling, tmp_path, arguments, message):
    command, *options = arguments
    assert message in scaling(command, study_file(tmp_path, ["6k"]), *options, code=2)
    assert not queued(slurm) and not (tmp_path / "out").exists()


def test_a_dry_run_shows_every_script_and_writes_nothing(slurm, scaling, tmp_path):
    """Without a controller too: the configuration names a port where nobody listens."""
    study, silent = study_file(tmp_path, ["6k"]), tmp_path / "silent.conf"
    result = json.loads(scaling("submit", study, "--dry-run", "--json"))
    assert list(result["scripts"]) == ["corpus", "train-0", "eval-0", "finish"] and result["validated"]
    shown = scaling("submit", study, "--dry-run", "--explain")
    assert "SLURM accepts every script" in shown and "assumed until runs have finished" in shown
    conf = Path(slurm.environment["SLURM_CONF"]).read_text()
    silent.write_text(re.sub(r"(?m)^(SlurmctldPort|MessageTimeout)=.*", r"\1=2", conf))
    shown = scaling("submit", study, "--dry-run", "--explain", SLURM_CONF=str(silent))
    assert "# ----- train-0.sbatch -----\n#!/bin/bash\n#SBATCH " in shown and "  minutes = " in shown
    assert "not validated: no controller of SLURM answers (" in shown and "at most 1,001 elements" in shown
    assert not queued(slurm) and not (tmp_path / "out").exists()


def test_the_rank_file_is_looked_for_where_the_corpus_job_will(monkeypatch, tmp_path):
    """And afterwards where it was."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "here"))
    environment = {"TIKTOKEN_CACHE_DIR": str(tmp_path / "of jobs")}
    for profile in (
        Cluster(**GPUS, environment=environment),
        Cluster(**GPUS, by_kind={"corpus": {"environment": environment}}),
    ):
        with tokenizers_of(profile):
            (line,) = check_tokenizer("cl100k_base", fetch=False)
        assert f"is not in {tmp_path / 'of jobs'} (TIKTOKEN_CACHE_DIR)" in line
        assert str(tmp_path / "here") in check_tokenizer("cl100k_base", fetch=False)[0]


def test_a_dry_run_needs_no_data(scaling, tmp_path):
    """Everything that is missing is named at once; of each kind of job one script is whole."""
    (tmp_path / "big.yaml").write_text(yaml.safe_dump(GPUS))
    text = (PACKAGED / "cluster.yaml").read_text().replace("micro_batch_tokens: 16_384", "micro_batch_tokens: 32_768")
    (tmp_path / "study.yaml").write_text(text)
    command = ["submit", tmp_path / "study.yaml", "--cluster", tmp_path / "big.yaml", "--dry-run", "--explain"]
    command += ["--out", tmp_path / "out"]
    shown = scaling(*command, warning="evaluation-data is no folder", PATH=str(tmp_path))
    assert shown == scaling(*command, warning="'part-1.jsonl.gz' does not exist", PATH=str(tmp_path))
    assert shown.count("#!/bin/bash") == 4 and "# ----- train-1.sbatch: as train-0.sbatch but for -----" in shown
    assert re.search(r"not 1: [\d.]+ of 72\.0 GB, 2: ", shown)
    hint = r"train-\d: its memory decides: with half of training\.micro_batch_tokens it needs \d+ GPUs?, not \d+\n"
    assert re.search(hint, shown) and re.search(
        hint, scaling(*command[:-3], "--out", tmp_path / "out", PATH=str(tmp_path))
    )
    assert not (tmp_path / "out").exists()


def test_what_sbatch_refuses_after_the_first_job_leaves_nothing(slurm, scaling, tmp_path):
    """Each script alone is fine; the controller takes no fourth job of this user."""
    study = study_file(tmp_path, ["6k"])
    (tmp_path / "bin").mkdir()
    count, real = tmp_path / "count", shutil.which("sbatch", path=slurm.environment["PATH"])
    wrapper = tmp_path / "bin" / "sbatch"
    wrapper.write_text(
        f"""#!/bin/bash
[[ " $* " == *" --test-only "* ]] && exec {real} "$@"
echo >> {count}; (( $(wc -l < {count}) < 3 )) && exec {real} "$@"
exec {real} --qos=none --partition=nowhere "$@"
"""
    )
    wrapper.chmod(0o755)
    output = scaling("submit", study, code=2, PATH=f"{tmp_path / 'bin'}:{slurm.environment['PATH']}")
    assert "nowhere" in output and count.read_text() == "\n\n\n"
    assert not queued(slurm) and not (tmp_path / "out").exists()


@pytest.mark.parametrize("write", [2, 3])
def test_a_kill_between_sbatch_and_the_record_submits_nothing_twice(slurm, scaling, tmp_path, write):
    """submission.json is written first of all, then before and after each sbatch: the kill comes around the first."""
    study = study_file(tmp_path, ["6k"])
    command = [sys.executable, "-m", "scaling", "submit", str(study)]
    environment = slurm.environment | {"KILL_AT_WRITE": f"submission:{write}"}
    killed = subprocess.run(command, env=environment, start_new_session=True, capture_output=True, check=False)
    assert killed.returncode == -9
    assert len(queued(slurm)) == (0 if write == 2 else 1)
    shown = submitted(scaling, study)
    names = [line.split()[2] for line in queued(slurm)]
    assert names.count(f"tiny-{Path(shown['submission']).name}-train-0") == 1
    assert sum("train-0" in name for name in names) == 1
    corpora = [line for line in queued(slurm) if line.endswith("corpus")]
    assert all(corpus.split()[0] in "".join(line.split()[1] for line in corpora) for corpus in corpora[:-1])


def test_a_controller_that_restarts_is_waited_for(slurm, scaling, tmp_path):
    study = study_file(tmp_path, ["6k"])
    slurm.kill("slurmctld")
    command = [sys.executable, "-m", "scaling", "submit", str(study), "--json"]
    with subprocess.Popen(command, env=slurm.environment, stdout=subprocess.PIPE, text=True) as process:
        time.sleep(4)
        assert process.poll() is None
        slurm.start_controller()
        result = json.loads(process.communicate(timeout=600)[0])
    assert list(result["jobs"]) == ["corpus", "train-0", "eval-0", "finish"]
    # jobs that were cancelled just before the kill may be back: they have other ids
    ours = [line for line in queued(slurm) if line.split("_")[0].split()[0] in result["jobs"].values()]
    assert len(ours) == len(set(result["jobs"].values())) == 4


def test_a_thousand_runs_are_one_submission(slurm, scaling, tmp_path):
    study = study_file(tmp_path, ["6k", "98k"], seeds=250, jobs={"cluster": CPUS | {"pack_minutes": 0}})
    out = tmp_path / "out"
    shown = submitted(scaling, study, "--out", out)
    assert sum(len(job["elements"]) for job in shown["plan"]["jobs"] if job["kind"] == "train") == 1000
    assert len(queued(slurm)) == 2 + 2 * 1000
    assert len(json.loads(scaling("status", study, "--out", out, "--json"))["runs"]) == 1000


@pytest.mark.skipif(os.getuid() != 0, reason="GPUs of a test cluster are device files: only root can make them")
def test_the_papers_plan_passes_on_64_gpus(scaling, tmp_path, ranks):
    (tmp_path / "big.yaml").write_text(yaml.safe_dump(GPUS | {"gpu": "h200"}))
    with cluster(nodes=8, gpus=8) as big:
        command = ["submit", "paper", "--cluster", tmp_path / "big.yaml", "--dry-run", "--json", "--out", tmp_path]
        result = json.loads(scaling(*command, SLURM_CONF=big.environment["SLURM_CONF"]))  # its data are not here
    assert result["validated"]
    assert sum(len(e) for job in result["plan"]["jobs"] if job["kind"] == "train" for e in job["elements"]) == 32


# A site's own sbatch, squeue and the like: before and behind SLURM's words, in Latin-1, what could be taken for rows of
# the queue.
TALKS = r"""#!/bin/bash
printf 'INFO: Gr\xfc\xdfe, job 77 of 100\n'
printf 'INFO: Gr\xfc\xdfe, 1 node down\n' >&2
{program} "$@"
code=$?
printf '\nquota|1|2|3|4|5|6|7|8|9|\n 1 | \nn1\n3 GB of 20\n'
exit $code
"""
SILENT = """#!/bin/bash
{program} "$@" >/dev/null && echo "queued, have a nice day"
"""


@pytest.fixture
def site(slurm, tmp_path):
    """Puts a program's stand-in into a folder; gives the PATH that begins with it."""
    folder = tmp_path / "site"
    folder.mkdir()

    def put(text, *names):
        for name in names:
            (folder / name).write_text(text.replace("{program}", shutil.which(name, path=PATH)))
            (folder / name).chmod(0o755)
        return f"{folder}:{PATH}"

    return put


def ids_of(tmp_path):
    return {name: job["id"] for name, job in read_json(tmp_path / "out/tiny/jobs/0001/submission.json")["jobs"].items()}


def pending(slurm):
    return {str(job["array_job_id"] or job["job_id"]) for job in slurm.jobs() if job["job_state"] == "PENDING"}


def test_lines_of_the_site_are_passed_over(slurm, scaling, site, tmp_path, monkeypatch):
    """The id was 'INFO..\\n1234': a job that `cancel` did not know."""
    path, study = site(TALKS, "sbatch", "squeue", "sinfo", "scontrol", "scancel"), study_file(tmp_path, ["6k"])
    ids = json.loads(scaling("submit", study, "--json", PATH=path))["jobs"]
    assert list(ids) == ["corpus", "train-0", "eval-0", "finish"] and ids == ids_of(tmp_path)
    assert set(ids.values()) == pending(slurm)
    result = json.loads(scaling("status", study, "--json", PATH=path))
    assert {run["state"] for run in result["runs"]} == {"queued"} and len(result["jobs"]) == 4
    for name, value in (slurm.environment | {"PATH": path}).items():
        monkeypatch.setenv(name, value)
    assert commands._lost_nodes() == 0 and commands.max_array_size() == 1001 and commands.silent() is None
    assert scaling("cancel", study, PATH=path).startswith("cancelled: ") and not pending(slurm)


def test_a_job_without_an_id_is_not_lost(slurm, scaling, site, tmp_path, monkeypatch):
    """It is looked up by its name. Where squeue is closed, or behind: one line, and `cancel` ends it later."""
    path, other = site(SILENT, "sbatch"), study_file(tmp_path, ["6k"], name="other")
    ids = json.loads(scaling("submit", other, "--json", PATH=path))["jobs"]
    assert pending(slurm) == {*ids.values()}
    scaling("cancel", other)
    site("#!/bin/bash\necho squeue is closed >&2\nexit 1\n", "squeue")
    monkeypatch.setenv("PATH", path)
    with pytest.raises(InputError, match="squeue: squeue is closed"):
        commands.find("mine", tmp_path)
    site("#!/bin/bash\nexit 0\n", "squeue")
    study = study_file(tmp_path, ["6k"])
    output = scaling("submit", study, code=2, PATH=path)
    assert "took the job and printed no id: queued, have a nice day" in output
    assert "squeue shows no job tiny-0001-corpus yet: `scaling cancel` ends it" in output
    assert ids_of(tmp_path)["corpus"] is None
    (job,) = pending(slurm)
    assert scaling("cancel", study).startswith(f"cancelled: {job}\n") and not pending(slurm)
