"""The house rules: who may import whom, small modules, light imports, no machine's paths in the sources."""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("arch", "data", "flops", "scaling", "jobs", "analysis")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MAX_LINES = 350
GENERATED = {".git", ".venv", ".hypothesis", "__pycache__", "out", "build", "dist"}

# What each package may import beside itself: a name stands for the module and everything below it.
ALLOWED = {
    "arch": (),
    "data": ("arch.errors",),
    "flops": (
        *("arch.config", "arch.hgrn1_shape", "arch.kernel_config", "arch.earlier", "arch.presets", "arch.registry"),
        "arch.errors",
    ),
    "scaling": ("arch", "data", "flops"),
    "jobs": (
        *("scaling.spec", "scaling.sections", "scaling.study_file", "scaling.rundir", "scaling.worklist"),
        *("scaling.train_run", "scaling.owner", "scaling.stop"),
        *("data.files", "flops", "arch.arguments", "arch.errors"),
    ),
    "analysis": (
        *("arch", "data", "flops", "scaling.spec", "scaling.rundir", "scaling.checkpoint", "scaling.artifacts"),
        *("scaling.study_file", "scaling.fields"),
    ),
}
SEES_ALL = (
    *("scaling.cli", "scaling.cli_eval", "scaling.cli_jobs", "scaling.cli_options", "scaling.cli_recall"),
    *(
        "scaling.commands",
        "scaling.corpus_stage",
        "scaling.evaluation",
        "scaling.eval_plan",
        "scaling.eval_progress",
        "scaling.plan_notes",
        "scaling.submission",
        "scaling.__main__",
    ),
)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {module_name(path): path for path in MODULES}


def within(name: str, parents: tuple[str, ...]) -> bool:
    return any(name == parent or name.startswith(parent + ".") for parent in parents)


def imports_of(source: str, name: str, is_package: bool) -> Iterator[tuple[str, int, bool]]:
    """(imported module, line, at import time?) of all our modules that `source` imports, inside functions too."""

    def visit(node: ast.AST, top: bool) -> Iterator[tuple[str, int, bool]]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno, top
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = name.split(".") if is_package else name.split(".")[:-1]
                here = package[: len(package) - node.level + 1]
                base = ".".join(here + ([node.module] if node.module else []))
            for alias in node.names:
                # `from a import b` means the module a.b where there is one, else a
                inner = f"{base}.{alias.name}"
                yield (inner if inner in NAMES else base), node.lineno, top
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in ast.iter_child_nodes(node):
                yield from visit(child, False)
        else:
            top = top and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            for child in ast.iter_child_nodes(node):
                yield from visit(child, top)

    for imported, line, top in visit(ast.parse(source), True):
        if imported.split(".")[0] in PACKAGES:
            yield imported, line, top


def violations(source: str, name: str, is_package: bool = False) -> list[str]:
    own = name.split(".")[0]
    return [
        f"{name}:{line} imports {imported}"
        for imported, line, _ in imports_of(source, name, is_package)
        if name not in SEES_ALL and not within(imported, (own, *ALLOWED[own]))
    ] + [
        f"{name}:{line} imports {imported}, which only the command line may"
        for imported, line, _ in imports_of(source, name, is_package)
        if name not in SEES_ALL and within(imported, SEES_ALL)
    ]


def test_packages_import_only_the_ones_below():
    found = [v for name, path in NAMES.items() for v in violations(path.read_text(), name, path.stem == "__init__")]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("arch.hf", "import scaling.spec"),
        ("data.corpus", "from arch import config"),
        ("data.corpus", "def f():\n    from arch.presets import preset"),
        ("flops.params", "from arch.hf import build_model"),
        ("jobs.local", "from scaling import trainer"),
        ("analysis.curves", "class A:\n    def f(self):\n        import scaling.cli"),
        ("scaling.trainer", "from .cli import main"),
        ("scaling.trainer", "from analysis.fits import envelope"),
    ],
)
def test_the_import_rule_sees_a_violation(name, source):
    assert violations(source, name)


def test_the_import_rule_allows_what_it_should():
    assert not violations("from arch.errors import InputError\nfrom .files import write_json", "data.corpus")
    assert not violations("import analysis.report\nimport jobs.local", "scaling.cli")


def test_no_import_cycles():
    """Among modules as they are imported, and among packages (the command line stands on top of all)."""
    modules: dict[str, set[str]] = {}
    packages: dict[str, set[str]] = {}
    for name, path in NAMES.items():
        modules[name] = set()
        top_name = "cli" if name in SEES_ALL else name.split(".")[0]
        for imported, _, at_import_time in imports_of(path.read_text(), name, path.stem == "__init__"):
            if at_import_time and imported != name and imported in NAMES:
                modules[name].add(imported)
            target = "cli" if imported in SEES_ALL else imported.split(".")[0]
            if target != top_name:
                packages.setdefault(top_name, set()).add(target)
    assert find_cycle(modules) == []
    assert find_cycle(packages) == []


def find_cycle(graph: dict[str, set[str]]) -> list[str]:
    done: set[str] = set()

    def walk(node: str, trail: list[str]) -> list[str]:
        if node in trail:
            return [*trail[trail.index(node) :], node]
        if node in done:
            return []
        for follower in sorted(graph.get(node, ())):
            if cycle := walk(follower, [*trail, node]):
                return cycle
        done.add(node)
        return []

    return next((cycle for node in sorted(graph) if (cycle := walk(node, []))), [])


def test_find_cycle_finds_one():
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


def test_modules_stay_small():
    long = {module_name(path): n for path in MODULES if (n := len(path.read_text().splitlines())) > MAX_LINES}
    assert not long, f"modules longer than {MAX_LINES} lines: {long}"


def test_no_source_names_a_machine():
    """Paths of one machine, and package index addresses, do not belong into the repository."""
    words = re.compile("|".join(["/" + "root/", "/" + "work/", "/" + "home/", "/" + "Users/", "index" + "-url"]))
    suffixes = {".py", ".md", ".toml", ".yaml", ".yml", ".txt", ".ipynb", ""}
    found = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [f for f in folders if f not in GENERATED and not f.endswith(("_cache", ".egg-info"))]
        for path in (Path(folder, file) for file in files if Path(file).suffix in suffixes):
            lines = path.read_text(errors="replace").splitlines()
            found += [f"{path.relative_to(ROOT)}:{i}" for i, line in enumerate(lines, 1) if words.search(line)]
    assert not found


def test_constraints_are_pins_and_cover_the_dependencies():
    import tomllib

    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line) for line in lines)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + [r for extra in project["optional-dependencies"].values() for r in extra]
    names = {re.split(r"[<>=\[;]", r)[0].strip().lower().replace("_", "-") for r in wanted} - {"linear-scaling"}
    assert names <= {line.split("==")[0] for line in lines}


@pytest.mark.parametrize("module", ["arch.config", "arch.presets", "arch.registry", "flops", "flops.cli"])
def test_sizing_tools_import_without_torch(module):
    code = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in json.loads(result.stdout)}
    assert not loaded & {"torch", "numpy", "transformers", "pandas", "scipy"}


def test_a_model_comes_without_what_most_processes_do_not_use():
    """torch's compiler and transformers take longer to import than a small evaluation takes."""
    code = "import json, sys, arch.lm, arch.decode; print(json.dumps(sorted(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not set(json.loads(result.stdout)) & {"torch._dynamo", "torch._inductor", "transformers"}
