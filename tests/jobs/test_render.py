"""The batch scripts: what bash makes of them, whatever the names are."""

import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arch.errors import InputError
from jobs.model import ArrayJob, Resources
from jobs.plan import elements_text
from jobs.render import Paths, ScriptContext, render, sbatch_options
from scaling.study.jobs_schema import Cluster

from .studies import CPUS, GPUS

# What a job's processes have of its options, or a user of his own: sbatch takes its options from them, the jobs that it
# submits inherit them, and so does every srun in these.
INHERITED = {
    **dict.fromkeys(("SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SBATCH_MEM_PER_CPU"), "500"),
    **dict.fromkeys(("SLURM_EXPORT_ENV", "SRUN_EXPORT_ENV", "SBATCH_EXPORT"), "NONE"),
    **{"SLURM_NTASKS": "7", "SLURM_CPU_BIND": "map_cpu:900", "SLURM_GRES": "gpu:9", "SLURM_HINT": "memory_bound"},
    **{"SLURM_RESERVATION": "nowhere", "SLURM_RESTART_COUNT": "5", "SLURM_TIMELIMIT": "never"},
    **{"SRUN_CPUS_PER_TASK": "63", "SBATCH_PARTITION": "nowhere", "SBATCH_ARRAY_INX": "0-99"},
    **{"SQUEUE_USERS": "nobody", "SQUEUE_STATES": "CANCELLED", "SCANCEL_STATE": "PENDING"},
    **{"RANK": "3", "WORLD_SIZE": "8", "PMI_RANK": "3"},
}
KINDS = ("corpus", "train", "eval", "finish")
NASTY = 'it\'s a "study"; $(touch pwned) `touch pwned` & | > < * ? ~ # ! \\ {a,b} %j [x] é'


def job(kind, nodes=2, gpus=0, elements=3, at_once=1):
    asked = Resources(nodes, 2, gpus, 4, 2048, 90, at_once=at_once)
    return ArrayJob(kind if kind in ("corpus", "finish") else f"{kind}-0", kind, asked, (("run",),) * elements)


def context(name="tiny", root="/somewhere", profile=None, sets=(), only=(), python="/usr/bin/python3"):
    submission = Path(root) / name / "jobs" / "0001"
    paths = Paths(submission, submission / "code", submission / "study.yaml", Path(root) / name, Path(root))
    return ScriptContext(name, profile or Cluster(**CPUS), paths, python, tuple(sets), tuple(only))


def commands(script):
    return [line for line in script.split("\n") if line and not line.startswith("#")]


def checked(script):
    """bash reads the script without a complaint."""
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, f"{done.stderr}\n{script}"
    return script


def linted(script):
    """Nor has shellcheck one, where it is installed."""
    if shutil.which("shellcheck"):
        command = ["shellcheck", "--shell=bash", "--severity=warning", "-"]
        done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
    return script


def exports(script):
    """{name: value} of what the script's head exports, as bash itself understands it; and its folder."""
    head = script[: script.index("\n\n")].replace("cd -- ", "folder=").replace(" || exit 2", "")
    done = subprocess.run(
        ["bash", "-c", head + '\nprintf \'%s\\0\' "$PYTHONPATH" "$folder"'], env={}, capture_output=True, check=False
    )
    assert not done.stderr, done.stderr
    return [text.decode() for text in done.stdout.split(b"\0")[:2]]


@pytest.mark.parametrize("profile", [Cluster(**CPUS), Cluster(**GPUS)])
@pytest.mark.parametrize(("kind", "at_once"), [*((kind, 1) for kind in KINDS), ("train", 4), ("eval", 4)])
def test_scripts_are_clean_shell(kind, at_once, profile):
    linted(checked(render(context(profile=profile), job(kind, at_once=at_once))))


text = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=30).filter(lambda s: "/" not in s)
evil = st.sampled_from([NASTY, "a b", "'", '"', "$(x)", "`x`", ";x", "-x", "\\", "#x", "%j%%", "$HOME", "x\u2028y"])
names = st.one_of(text, evil).filter(lambda s: s not in (".", ".."))


@settings(max_examples=60)
@given(names, names, names, names, st.sampled_from(KINDS))
def test_no_name_reaches_the_shell_unquoted(study, root, value, variable, kind):
    """Every name is one word of the script, and the word is the name."""
    profile = Cluster(
        **CPUS | {"environment": {"X": variable if variable.isprintable() else "x"}, "container": ["run", "a b"]}
    )
    made = context(study, f"/out/{root}", profile, ("--set", value), ("--only", value), f"/bin/{root}")
    made = replace(made, python_path=f"/own:{value}")
    script = checked(render(made, job(kind)))
    assert exports(script) == [f"{made.paths.code}:/own:{value}", str(made.paths.work)]
    for option in sbatch_options(made, job(kind)):
        assert re.fullmatch(r"[A-Za-z0-9_.,:@+*&|()\[\]/=!~%-]+", option), option
    for line in (line for line in commands(script) if f"/bin/{root}" in line):
        words = shlex.split(line.rstrip("\\"))
        start = words.index("run")
        assert words[start : start + 3] == ["run", "a b", f"/bin/{root}"]
        if "scaling" in words[4:]:
            assert str(made.paths.study_file) in words and str(made.paths.directory.parent) in words
            assert words[words.index("--set") + 1] == value


def run_element(folder, made, srun, before="", code=0, of=None, **environment):
    """What bash makes of the script of an element, of an evaluation if no other, with a stand-in for srun."""
    array, programs = of or job("eval"), folder / "bin"
    made.paths.submission.mkdir(parents=True, exist_ok=True)
    made.paths.elements(array).write_text("a b\t$(touch pwned)\nnot this\n" if of is None else elements_text(of))
    programs.mkdir(exist_ok=True)
    (programs / "srun").write_text(f"#!/bin/bash\n{srun}\n")
    (programs / "srun").chmod(0o755)
    env = {"PATH": f"{programs}:/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "0", "SLURM_RESTART_COUNT": "0"} | environment
    script = before + render(made, array)
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == code, done.stderr
    return done.stdout


def test_nothing_is_executed_but_what_is_meant(tmp_path):
    """With commands in all its names, against a program that notes what it got."""
    root, called = tmp_path / NASTY, shlex.quote(str(tmp_path / "called"))
    made = context("st$(touch pwned)", str(root), python=str(tmp_path / "pyth'on; touch pwned"), sets=("--set", NASTY))
    run_element(tmp_path, made, f"printf '%s\\0' \"$@\" >> {called}")
    words = (tmp_path / "called").read_text().split("\0")[:-1]
    assert words[words.index("--checkpoint") + 1] == "a b"
    assert words[-1] == "$(touch pwned)" and "not this" not in words
    assert NASTY in words and str(tmp_path / "pyth'on; touch pwned") in words
    assert not list(tmp_path.rglob("pwned"))


def test_srun_finds_no_options_but_the_scripts(tmp_path):
    """Of the job that the script was submitted in, by hand or by a library, or of a site's defaults."""
    ours = {"SLURM_CONF": "/etc/slurm.conf", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_ARRAY_JOB_ID": "7"}
    ours |= {"SLURM_ARRAY_TASK_ID": "0", "SLURM_RESTART_COUNT": "1", "SLURMD_NODENAME": "n1"}
    run_element(tmp_path, context("s", str(tmp_path)), f"env > {tmp_path / 'env'}", **(INHERITED | ours))
    inherited = dict(line.partition("=")[::2] for line in (tmp_path / "env").read_text().splitlines())
    assert {name: value for name, value in inherited.items() if name.startswith(("SLURM", "SRUN_"))} == ours


def test_a_steps_exit_code_is_its_own(tmp_path):
    """A signal ends the script's wait, and the step ends well before the script looks whether it still runs."""
    stand_ins = 'kill() { [ "$1" != -0 ] || command sleep 1; builtin kill "$@"; }\nsleep() { :; }\n'
    stand_ins += "scontrol() { echo queued again; }\n"
    srun = 'trap "" TERM\nkill -USR1 $PPID\nsleep 0.1'
    assert run_element(tmp_path, context("s", str(tmp_path)), srun, stand_ins, SLURM_ARRAY_JOB_ID="1") == ""
    run_element(tmp_path, context("s", str(tmp_path)), "exit 3", code=3, SLURM_ARRAY_JOB_ID="1")


RUN = """
name=$(basename "${*: -3:1}")
echo "began $name" >>called
[ "$name" != stops ] || { sleep 0.5; exit 75; }
[ "$name" != long ] || sleep 2
[ "$name" != fails ] || exit 3
echo "ended $name" >>called
"""
OUTCOME = "#!/bin/bash\n[ $2 = jobs.outcome ] && exit $4\nexit 9\n"  # the run's own code


@pytest.mark.parametrize(("runs", "code"), [(["long", "fails", "b", "c"], 3), (["long", "stops", "b", "c"], 75)])
def test_runs_side_by_side_stop_none_of_the_others(tmp_path, runs, code):
    """Whoever is free takes the next; where one is to be queued again, that waits for the others."""
    (tmp_path / "python").write_text(OUTCOME)
    (tmp_path / "python").chmod(0o755)
    made = context("s", str(tmp_path), Cluster(**GPUS, requeue=False), python=str(tmp_path / "python"))
    for run in runs:
        (made.paths.runs / run).mkdir(parents=True)
    asked = Resources(1, 2, 8, 4, 2048, 90, at_once=2)
    run_element(tmp_path, made, RUN, code=code, of=ArrayJob("train-0", "train", asked, (tuple(runs),)), TMPDIR=tmp_path)
    called = (tmp_path / "called").read_text().splitlines()
    assert sorted(called[:2]) == sorted(f"began {run}" for run in runs[:2])
    assert {f"ended {run}" for run in ("long", "b", "c")} < set(called) and len(called) == 7
    assert called.index("ended c") < called.index("ended long") or code == 75, "the free place took both"
    assert not list(tmp_path.glob("tmp.*"))


def test_what_is_asked_for():
    more = {"gpu_type": "h100", "partition": "gpu", "account": "a", "qos": "q", "constraint": "x&y"}
    profile = Cluster(**GPUS | more | {"sbatch": ["--exclusive"]})
    assert set(sbatch_options(context(profile=profile), job("train", nodes=3, gpus=2))) == {
        *("--nodes=3", "--ntasks-per-node=2", "--cpus-per-task=4", "--time=90", "--mem=2048M"),
        *("--gpus-per-node=h100:2", "--partition=gpu", "--account=a", "--qos=q", "--constraint=x&y", "--exclusive"),
        *("--array=0-2", "--requeue", "--open-mode=append", "--signal=B:USR1@180", "--job-name=tiny-0001-train-0"),
        "--output=logs/train-0_%A_%a.log",
    }
    gres = Cluster(**GPUS | {"ask_gpus": "gres"})
    assert "--gres=gpu:2" in sbatch_options(context(profile=gres), job("train", gpus=2))
    whole = job("train", nodes=1, gpus=8, at_once=4)
    assert {"--gres=gpu:8", "--ntasks-per-node=8", "--mem=2048M"} <= set(sbatch_options(context(profile=gres), whole))
    step = "srun --cpus-per-task=4 --exact --mem=512M --gres=gpu:2 --nodes=1 --ntasks=2"
    assert step in render(context(profile=gres), whole), "each of four runs gets a quarter"


def test_an_admins_own_template_wins(tmp_path):
    (tmp_path / "head.sbatch.j2").write_text("#!/bin/bash\n#SBATCH --comment=ours\n")
    profile = Cluster(**CPUS | {"templates": str(tmp_path)})
    script = render(context(profile=profile), job("finish"))
    assert script.startswith("#!/bin/bash\n#SBATCH --comment=ours\n") and "-m scaling finish" in script


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{{ nothing }}", "'nothing' is undefined"),
        (b"a\n{% if %}", "line 2"),
        (b"# caf\xe9\n", r"of finish jobs or one that it includes cannot be read: .*utf-8"),
    ],
)
def test_a_broken_template_is_one_line(tmp_path, text, message):
    (tmp_path / "finish.sbatch.j2").write_bytes(text)
    with pytest.raises(InputError, match=message):
        render(context(profile=Cluster(**CPUS | {"templates": str(tmp_path)})), job("finish"))


def test_a_line_break_in_a_path_is_refused():
    with pytest.raises(InputError, match="line break"):
        render(context(root="/a\nb"), job("finish"))


def test_a_kind_of_job_has_options_of_its_own():
    profile = Cluster(
        **GPUS,
        constraint="h100",
        sbatch=["--exclusive"],
        container=["apptainer", "exec", "--nv", "i"],
        by_kind={"corpus": {"partition": "cpu", "constraint": None, "sbatch": [], "container": []}},
    )
    made = context(profile=profile)
    corpus, train = sbatch_options(made, job("corpus")), sbatch_options(made, job("train"))
    assert "--partition=cpu" in corpus and not {"--constraint=h100", "--exclusive"} & set(corpus)
    assert {"--constraint=h100", "--exclusive"} <= set(train)
    assert "apptainer" in render(made, job("train")) and "apptainer" not in render(made, job("corpus"))


def test_with_options_of_srun_every_python_is_started_by_it():
    made = context(profile=Cluster(**CPUS, srun=["--container-image=my image.sqsh"]))
    for kind in ("corpus", "train", "eval", "finish"):
        script = linted(checked(render(made, job(kind))))
        starts = [line for line in re.sub(r"\\\n", "", script).splitlines() if "/usr/bin/python3 -m" in line]
        assert starts and all(
            "srun '--container-image=my image.sqsh' --cpus-per-task=4 --nodes=" in line for line in starts
        )


def test_a_setup_line_that_fails_ends_the_job(tmp_path):
    """But not a command inside a file that it reads, as those of conda have."""
    (tmp_path / "fine.sh").write_text("grep -q nothing /dev/null\ntrue\n")
    setup = [f"source {tmp_path / 'fine.sh'}", "echo before", "module load nothing", "echo after"]
    made = context(profile=Cluster(**CPUS, setup=setup))
    script = tmp_path / "finish.sbatch"
    script.write_text(render(made, job("finish")))
    done = subprocess.run(["bash", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stdout == "before\n"
    assert done.stderr.splitlines()[-1] == "a setup line of the cluster profile failed: module load nothing"


def test_where_no_job_may_be_queued_again(tmp_path):
    """An element that a signal stops ends with its state saved; it asks the controller for nothing."""
    made = context("s", str(tmp_path), profile=Cluster(**CPUS, requeue=False))
    assert {"--no-requeue"} <= set(sbatch_options(made, job("train")))
    stand_ins = "scontrol() { echo queued again; }\n"
    assert run_element(tmp_path, made, "kill -USR1 $PPID; sleep 0.2; exit 1", stand_ins, code=75) == ""
