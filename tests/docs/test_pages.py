"""The pages for people: generated parts are up to date, links lead somewhere, README stays short."""

import os
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from docs.generate import REFRESH, generated_pages, page
from scaling.cli.flops import app as flops_app
from scaling.cli.main import app as scaling_app
from scaling.rundir.worklist import EXIT_FAILED, EXIT_INPUT

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
NAMED = re.compile(
    r"(?<![\w./<>-])(?:docs|arch|flops|jobs|analysis|scaling|tests|benchmarks)/[A-Za-z][A-Za-z0-9_/-]*\.(?:md|yaml|py|ipynb)\b"
)
MOST_WORDS = 900  # of README.md


def names():
    """What git tracks, or would: a checkout's ignored folders hold pages of runs and notes of their own."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    result = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True) if shutil.which("git") else None
    if result is None or result.returncode:  # no checkout: an archive has nothing else
        return sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*"))
    return sorted(result.stdout.split("\0"))


NAMES = names()


def files(*suffixes):
    for name in NAMES:
        if Path(name).suffix in suffixes and (ROOT / name).is_file():
            yield ROOT / name


PAGES = list(files(".md"))


def prose(path):
    """The text of a page without what stands in fences."""
    return re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)


def anchors(path):
    """What a link can name after #, by the rule of GitHub and GitLab."""
    heads = re.findall(r"^#+ +(.*?)\s*$", prose(path), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", generated_pages(), ids=lambda path: path.name)
def test_generated_parts_are_up_to_date(path):
    committed, now = path.read_text(encoding="utf-8").splitlines(), page(path).splitlines()
    changed = [line for line in now if line not in committed] + [line for line in committed if line not in now]
    assert committed == now, (
        f"{path.relative_to(ROOT)} is out of date; `{REFRESH}` writes it anew. Changed: {changed[:4]}"
    )


def broken_links(path):
    for link in LINK.finditer(prose(path)):
        name, _, anchor = link["target"].partition("#")
        if "://" in name or name.startswith("mailto:"):
            continue
        target = path if not name else (path.parent / name).resolve()
        if not target.exists() or not target.is_relative_to(path.parent if not name else ROOT):
            yield f"{link['target']}: no such file"
        elif anchor and anchor not in anchors(target):
            yield f"{link['target']}: no such heading"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    assert not list(broken_links(path))


def test_a_broken_link_is_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A page, `so` named\n[a](#a-page-so-named) [b](#elsewhere) [c](none.md) [d](https://a.example)\n")
    assert list(broken_links(page)) == ["#elsewhere: no such heading", "none.md: no such file"]


def test_pages_that_are_named_exist():
    """Also where code, studies and pages name a file in plain words."""
    skipped = {"CHANGELOG.md"}  # it names files of the past
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in files(".md", ".yaml", ".toml")
        if path.name not in skipped
        for name in NAMED.findall(path.read_text(encoding="utf-8"))
        if not (ROOT / name).exists()
    ]
    missing += [
        f"{path.relative_to(ROOT)}: {name}"
        for path in files(".py")
        for name in re.findall(r"\b(?:docs|arch|flops|jobs|analysis)/[A-Za-z/-]+\.md\b", path.read_text("utf-8"))
        if not (ROOT / name).exists()
    ]
    assert not missing


@pytest.mark.parametrize("folder", [ROOT / "docs", ROOT / "docs" / "research"], ids=lambda folder: folder.name)
def test_the_index_has_every_page(folder):
    index = folder / "README.md"
    linked = {link["target"].partition("#")[0] for link in LINK.finditer(index.read_text(encoding="utf-8"))}
    assert {path.name for path in folder.glob("*.md")} - {"README.md"} <= linked


def test_a_pod_of_the_kubernetes_job_is_its_run(tmp_path):
    """Its own line of the prepared commands, whose exit code is the pod's; those that no start helps end the index."""
    job = yaml.safe_load((ROOT / "docs/machines/kubernetes.yaml").read_text())["spec"]
    (tmp_path / "commands").write_text("exit 1\npython3 -c 'import sys; sys.exit(int(\"3\"))' scaling.trainer 'a b'\n")
    command = job["template"]["spec"]["containers"][0]["command"]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | {"JOB_COMPLETION_INDEX": "1"}, check=False)
    hopeless, evicted = job["podFailurePolicy"]["rules"]
    assert done.returncode == EXIT_FAILED and hopeless["onExitCodes"]["values"] == [EXIT_INPUT, EXIT_FAILED]
    assert evicted["action"] == "Ignore" and job["completionMode"] == "Indexed"


def test_readme_is_short():
    words = len(re.findall(r"\S*\w\S*", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert words <= MOST_WORDS, f"README.md has {words} words, at most {MOST_WORDS}: move some of it into docs/"


def test_every_dependency_has_its_reason():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    wanted = project["dependencies"] + [requirement for extra in extras for requirement in extra]
    names = {re.split(r"[<>=\[;]", requirement)[0].strip() for requirement in wanted} - {"linear-scaling"}
    words = set(re.findall(r"[\w-]+", (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")))
    assert names <= words


def commands_of(path):
    """The command lines of `scaling` and `flops` in a page's blocks of code, as words."""
    for line in path.read_text(encoding="utf-8").splitlines():
        match = re.match(r"(?:    |\$ )?(?:\.venv/bin/)?((?:scaling|flops) .*)", line)
        if match and line.startswith(("    ", "$ ")):
            yield shlex.split(match[1].partition("  #")[0].partition(" > ")[0].partition(" | ")[0])


def wrong_commands(path):
    apps = {"scaling": get_command(scaling_app), "flops": get_command(flops_app)}
    for words in commands_of(path):
        command, rest = apps[words[0]], words[1:]
        while hasattr(command, "commands") and not rest[0].startswith("-"):
            known = command.commands.get(rest[0])
            if known is None:
                yield f"{' '.join(words)}: no such command"
                break
            command, rest = known, rest[1:]
        options = {option for parameter in command.params for option in parameter.opts} | {"--help", "-h"}
        yield from (f"{' '.join(words)}: {word}" for word in rest if word.startswith("--") and word not in options)


@pytest.mark.parametrize("path", [path for path in PAGES if list(commands_of(path))], ids=lambda path: path.name)
def test_commands_in_pages_are_those_there_are(path):
    assert not list(wrong_commands(path))


def test_a_wrong_command_is_seen(tmp_path):
    page = tmp_path / "page.md"
    lines = [
        "scaling plan a.yaml --only x  # as --b",
        "scaling rum a",
        "flops count --archs a",
        "scaling eval study a --tsks b",
        "scaling eval a",
    ]
    page.write_text("".join(f"    {line}\n" for line in lines))
    assert list(wrong_commands(page)) == [
        "scaling rum a: no such command",
        "flops count --archs a: --archs",
        "scaling eval study a --tsks b: --tsks",
        "scaling eval a: no such command",
    ]
