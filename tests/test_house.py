"""The house rules: who may import whom, light imports, no machine's paths in the sources."""

import ast
import io
import json
import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.golden.plant import FAULTS, is_there, read_faults

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("arch", "data", "flops", "scaling", "jobs", "analysis", "benchmarks")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
GENERATED = {".git", ".venv", ".hypothesis", "__pycache__", "out", "build", "dist"}

# The floors of the house: what each may import beside itself, also inside functions. A name stands for the module and
# everything below it; a module belongs to the floor with the longest name that it lies below.
LIGHT = (
    "arch.amounts",
    "arch.bands",
    "arch.commands",
    "arch.config",
    "arch.console",
    "arch.encoder",
    "arch.errors",
    "arch.kernel_config",
    "arch.latex",
    "arch.options",
    "arch.outside",
    "arch.presets",
    "arch.registry",
    "arch.tables",
    "arch.sizes",
)  # no torch
FITTED = (
    *("analysis.fits.points", "analysis.fits.fit", "analysis.fits.cost", "arch.amounts", "arch.errors"),
    *("analysis.fits.surface", "analysis.fits.forms", "analysis.fits.solver"),
)
SHARED = tuple(f"analysis.fits.{name}" for name in ("draws", "irreducible", "noise", "seeds", "smooth"))
ROOMS = tuple(f"analysis.fits.{room}" for room in ("comparison", "crossings", "envelope", "isoflop", "parametric"))
ALLOWED = {
    "arch": (),
    "data": ("arch.amounts", "arch.arguments", "arch.errors", "arch.soft_targets"),
    "flops": (
        *(*LIGHT, "data.files", "arch.architectures.common.mamba_options", "arch.architectures.hgrn1.shape"),
        *("arch.architectures.transformer.shape", "arch.architectures.common.delta_shape"),
        *("arch.architectures.gla.shape", "arch.architectures.retnet.shape"),
        "arch.architectures.fla.mixer",
    ),
    "scaling.study": (
        *LIGHT,
        "data.files",
        "data.labelled",
        "data.labelled_sources",
        "data.settings",
        "data.share",
        "data.vocabulary",
        "flops",
    ),
    "scaling.rundir": ("scaling.study", "arch", "data", "flops"),
    "scaling.trainer": ("analysis.evals", "scaling.rundir", "scaling.study", "arch", "data", "flops"),
    "scaling.checkpoints": ("scaling.rundir", "arch", "data"),
    "scaling.bundle": ("scaling.rundir", "arch.amounts", "arch.errors", "data.files", "data.left_out"),
    "scaling.check": ("scaling.study", "arch", "flops"),
    "jobs": (
        *("scaling.study", "scaling.rundir", "scaling.trainer.process", "scaling.trainer.stop"),
        *("data.files", "flops", "arch.amounts", "arch.arguments", "arch.errors", "arch.registry"),
    ),
    "analysis.claims": (),
    "analysis.table_files": ("arch.errors", "data.files", "data.parquet_size"),
    "analysis.contamination": ("arch.errors", "data"),
    "analysis.bigram": ("scaling.study", "arch.errors", "data"),
    "analysis.fits.settings": ("scaling.study", "data.files"),
    "analysis.scales": ("arch.errors",),
    "analysis.labels": (),
    "analysis.grid_points": ("scaling.study.axes",),
    "analysis.held_out": ("arch.errors", "data"),
    "analysis.run_evals": ("analysis.labels", "data.files", "scaling.study"),
    "analysis.run_table": ("analysis.fits.fit", "analysis.fits.settings", "arch.amounts", "arch.errors", "data.units"),
    "analysis.runs": (
        *("analysis.bigram", "analysis.fits.settings", "analysis.fits.study_fits", "analysis.grid_points"),
        *("analysis.labels", "analysis.run_evals", "analysis.run_table"),
        *("scaling.rundir", "scaling.study"),
        *("arch.errors", "data"),
    ),
    "analysis.fits.points": ("arch.errors",),
    "analysis.fits.fit": ("arch.bands",),
    "analysis.fits.cost": ("analysis.fits.points", "arch.amounts", "arch.errors"),
    "analysis.fits.surface": ("analysis.fits.cost", "arch.amounts", "arch.errors"),
    "analysis.fits.forms": ("analysis.fits.cost", "analysis.fits.surface", "arch.errors"),
    "analysis.fits.solver": ("analysis.fits.forms", "analysis.fits.surface", "arch.errors"),
    "analysis.fits.budgets": ("analysis.fits.points", "arch.amounts", "arch.errors"),
    "analysis.fits.parametric": (*FITTED, "analysis.fits.draws", "analysis.fits.noise"),
    "analysis.fits.irreducible": (),
    "analysis.fits.noise": ("analysis.fits.fit",),
    "analysis.fits.study_fits": (
        *("analysis.fits.fit", "analysis.fits.noise", "analysis.fits.pairwise", "analysis.fits.settings"),
        "analysis.fits.task_fits",
        *("data.files", "flops.laws"),
    ),
    "analysis.fits.smooth": (),
    "analysis.fits.draws": (),
    "analysis.fits.seeds": (*FITTED, *SHARED),
    "analysis.fits.crossings": (*FITTED, *SHARED, "analysis.fits.settings"),
    "analysis.fits.envelope": (*FITTED, *SHARED, "analysis.fits.crossings", "analysis.fits.settings"),
    "analysis.fits.isoflop": (*FITTED, *SHARED, "analysis.fits.budgets"),
    "analysis.fits.rehearsal": (*FITTED, "analysis.fits.irreducible", "analysis.fits.parametric"),
    "analysis.fits.verdicts": (*FITTED, *SHARED, *ROOMS, "analysis.fits.rehearsal", "analysis.fits.settings"),
    "analysis.fits.pairwise": ("analysis.fits.fit",),
    "analysis.fits.comparison": (*FITTED, "analysis.fits.draws", "analysis.fits.pairwise", "analysis.fits.parametric"),
    "analysis.fits.task_fits": ("analysis.fits.fit", "analysis.scales"),
    "analysis.fits.tasks": (
        *("analysis.fits.task_fits", "analysis.fits.prepare", "analysis.fits.settings"),
        *("analysis.fits.losses", "analysis.fits.fit", "analysis.fits.study_fits"),
        *("analysis.run_table", "analysis.scales", "arch.amounts", "arch.errors"),
    ),
    "analysis.fits.approaches": (
        *(*FITTED, *SHARED, *ROOMS, "analysis.fits.budgets"),
        *("analysis.fits.rehearsal", "analysis.fits.settings", "analysis.fits.verdicts"),
    ),
    "analysis.fits": (
        *(*FITTED, *SHARED, *ROOMS, "analysis.fits.approaches", "analysis.fits.pairwise"),
        *("analysis.fits.rehearsal", "analysis.fits.verdicts"),
        *("analysis.fits.settings", "analysis.fits.study_fits"),
        *("analysis.table_files", "analysis.labels", "analysis.run_table", "scaling.study.schedule"),
        *("flops.laws", "flops.quantity", "data"),
    ),
    "analysis.figures": (*LIGHT, "analysis.labels", "data.files"),
    "analysis.pages": ("analysis.table_files", "arch.latex", "arch.tables", "data.files"),
    "analysis.report": (
        *(
            "analysis.fits",
            "analysis.figures",
            "analysis.forecast",
            "analysis.labels",
            "analysis.pages",
            "analysis.run_table",
        ),
        *("analysis.costs", "analysis.scales", "analysis.source.base", "arch.amounts", "arch.tables"),
        *("data.clean.summary", "data.settings", "data.units"),
    ),
    "analysis.evals": (
        *("analysis.claims", "analysis.figures", "analysis.labels", "analysis.pages", "analysis.runs"),
        *("analysis.scales", "analysis.table_files", "scaling.study", "scaling.rundir", "arch", "data", "flops"),
    ),
    "analysis.design": (
        *(
            "analysis.fits",
            "arch.amounts",
            "arch.config",
            "arch.errors",
            "arch.registry",
            "data.vocabulary",
            "flops",
            "scaling.study.rate_law",
        ),
    ),
    "analysis.inspection": ("analysis.figures", "analysis.pages", "arch", "data"),
    "analysis.rates": (
        *("analysis.figures", "analysis.fits.fit", "analysis.fits.noise", "analysis.pages", "scaling.study.rate_law"),
        *("arch.amounts", "arch.errors", "data.files"),
    ),
    "analysis.trial": (
        *("analysis.held_out", "analysis.fits.comparison", "analysis.fits.noise", "analysis.fits.pairwise"),
        *("analysis.fits.points", *LIGHT),
    ),
    "analysis.recall": (
        *("analysis.claims", "analysis.figures", "analysis.pages", "scaling.study", "scaling.trainer.optimizers"),
        *("arch", "data"),
    ),
    "analysis.costs": ("scaling.study", "flops", "arch.errors"),
    "analysis.source": (
        *("analysis.bigram", "analysis.contamination", "analysis.run_table", "analysis.runs", "analysis.table_files"),
        *("analysis.fits", "scaling.study", "arch.errors", "data.files", "data.parquet_size"),
    ),
    "analysis.forecast": (
        *("analysis.fits", "analysis.grid_points", "analysis.labels", "analysis.run_table", "analysis.source"),
        *("scaling.study", "arch.errors", "data.files", "flops"),
    ),
    "analysis.stage": (
        *("analysis.bigram", "analysis.costs", "analysis.evals.registry", "analysis.fits"),
        *("analysis.figures", "analysis.forecast", "analysis.report", "analysis.run_table", "analysis.source"),
        *("analysis.table_files", "scaling.study", "arch.errors", "arch.registry", "data.files"),
    ),
    "analysis.publish": (
        "analysis.fits.study_fits",
        *("analysis.costs", "analysis.fits.settings", "analysis.forecast", "analysis.report", "analysis.run_table"),
        *(
            "analysis.source",
            "analysis.stage",
            "analysis.table_files",
            "scaling.rundir.versions",
            "scaling.study",
            "arch.errors",
            "data.files",
        ),
    ),
    "analysis": (),
    "scaling.cli": ("scaling", "jobs", "analysis", "arch", "data", "flops"),
    "scaling.__main__": ("scaling.cli",),
    "benchmarks": ("arch", "data", "analysis.design", "analysis.fits", "scaling.study"),
    "scaling": (),
}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {module_name(path): path for path in MODULES}


def within(name: str, parents: tuple[str, ...]) -> bool:
    return any(name == parent or name.startswith(parent + ".") for parent in parents)


@cache
def imports_of(source: str, name: str, is_package: bool) -> list[tuple[str, int, str]]:
    """(imported module, line, when: "at once", "later" inside a function, "types" for type checkers alone) of all our
    modules that `source` imports."""

    def visit(node: ast.AST, when: str) -> Iterator[tuple[str, int, str]]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno, when
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = name.split(".") if is_package else name.split(".")[:-1]
                here = package[: len(package) - node.level + 1]
                base = ".".join(here + ([node.module] if node.module else []))
            for alias in node.names:
                # `from a import b` means the module a.b where there is one, else a
                inner = f"{base}.{alias.name}"
                yield (inner if inner in NAMES else base), node.lineno, when
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in ast.iter_child_nodes(node):
                yield from visit(child, "types")
        else:
            if when == "at once" and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                when = "later"
            for child in ast.iter_child_nodes(node):
                yield from visit(child, when)

    return [imported for imported in visit(ast.parse(source), "at once") if imported[0].split(".")[0] in PACKAGES]


def floor_of(name: str) -> str:
    return max((floor for floor in ALLOWED if within(name, (floor,))), key=len)


def violations(source: str, name: str, is_package: bool = False) -> list[str]:
    floor = floor_of(name)
    return [
        f"{name}:{line} imports {imported}"
        for imported, line, _ in imports_of(source, name, is_package)
        if floor_of(imported) != floor and not within(imported, ALLOWED[floor])
    ]


def test_packages_import_only_the_ones_below():
    imports = [v for name, path in NAMES.items() for v in violations(path.read_text(), name, path.stem == "__init__")]
    assert not imports, "\n".join(imports)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("arch.hf.auto", "import scaling.study.spec"),
        ("data.corpus", "from arch import config"),
        ("data.corpus", "def f():\n    from arch.presets import preset"),
        ("flops.params", "from arch.hf.auto import build_model"),
        ("jobs.local", "from scaling import trainer"),
        ("analysis.fits.envelope", "from analysis.evals.results import tidy"),
        ("analysis.evals.page", "from analysis.report.laws import law_rows"),
        ("analysis.runs", "class A:\n    def f(self):\n        import scaling.cli.main"),
        ("scaling.trainer.loop", "from ..cli.main import main"),
        ("scaling.trainer.loop", "from analysis.fits import envelope"),
    ],
)
def test_the_import_rule_sees_a_violation(name, source):
    assert violations(source, name)


def test_the_import_rule_allows_what_it_should():
    assert not violations("from arch.errors import InputError\nfrom .files import write_json", "data.corpus")
    assert not violations("import analysis.report.page\nimport jobs.local", "scaling.cli.main")


def test_no_import_cycles():
    """Among modules and among floors, imports inside functions and those for types counted. Annotations within `arch`,
    whose modules name ModelConfig and the mixer, are left out among modules."""
    modules: dict[str, set[str]] = {}
    floors: dict[str, set[str]] = {}
    for name, path in NAMES.items():
        for imported, _, when in imports_of(path.read_text(), name, path.stem == "__init__"):
            annotates_arch = when == "types" and within(name, ("arch",)) and within(imported, ("arch",))
            if not annotates_arch and imported != name and imported in NAMES:
                modules.setdefault(name, set()).add(imported)
            if floor_of(imported) != floor_of(name):
                floors.setdefault(floor_of(name), set()).add(floor_of(imported))
    assert find_cycle(modules) == []
    assert find_cycle(floors) == []


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


# Where an architecture may be named in code outside its two places, and why.
NAMED = {
    "arch/presets.py": "sizes of models that others published",
    "benchmarks": "cases of arch/bench, and other packages' models",
    "arch/bench": "a case is a sequence operation as one architecture uses it, and is called by its name",
    "flops/ladder.py": "whose FLOP a ladder of equal FLOP has",
    "flops/table7.py": "the paper's table 7, row by row",
}
PLACES = re.compile(r"(arch|flops)/architectures/")


def names_in(source: str, archs: tuple[str, ...]) -> set[int]:
    """Lines whose names or strings, docstrings and sentences left out, hold an architecture's name."""
    words = re.compile(rf"(?<![a-z0-9])({'|'.join(archs)})(?![a-z0-9]|_cache)")  # functools.lru_cache
    kinds = (tokenize.NAME, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {
        token.start[0]
        for token in tokens
        if token.type in kinds and " " not in token.string and words.search(token.string)
    }


def test_an_architecture_is_named_in_its_two_places_alone():
    from arch.config import ARCHS

    lines_of = {str(path.relative_to(ROOT)): names_in(path.read_text(), ARCHS) for path in MODULES}
    named = {name for name, lines in lines_of.items() if lines and not PLACES.match(name)}
    assert {name for name in named if not name.startswith(tuple(NAMED))} == set()
    assert all(any(name.startswith(place) for name in named) for place in NAMED), "a place that names none any more"
    assert names_in('if cfg.arch == "tnl":\n    """tnl is fast"""', ARCHS) == {1}


STARTS = ("run", "Popen", "call", "check_call", "check_output")
FILES = ("read_text", "write_text", "open", "fdopen", "NamedTemporaryFile", "TemporaryFile", "TextIOWrapper")
OPENS = {*STARTS, *FILES, "FileHandler"}
BINARY = ("archive", "bz2", "gzip", "lzma", "os", "tarfile")  # whose open() gives bytes by default


def without_encoding(source: str) -> list[int]:
    """Lines that read or write text in whatever encoding the machine's locale has."""
    lines = []
    for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
        owner, _, name = ast.unparse(call.func).rpartition(".")
        if name not in OPENS:
            continue
        keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        given = [ast.unparse(argument) for argument in call.args]
        is_text = name in STARTS and "True" in (keywords.get("text"), keywords.get("universal_newlines"))
        if name in ("read_text", "write_text") and owner:
            is_text = len(given) < (1 if name == "read_text" else 2)
        elif name in ("open", "fdopen", "NamedTemporaryFile", "TemporaryFile"):
            at = 0 if (owner and owner not in (*BINARY, "io")) or name.endswith("TemporaryFile") else 1
            mode = keywords.get("mode") or (given[at] if len(given) > at else "'rb'" if owner in BINARY else "'r'")
            is_text = (owner, name) not in (("os", "open"), ("tarfile", "open")) and "b" not in mode
            is_text = is_text and not (name.endswith("TemporaryFile") and "mode" not in keywords and not given)
        elif name in ("TextIOWrapper", "FileHandler"):
            is_text = True
        if is_text and "encoding" not in keywords and None not in keywords:
            lines.append(call.lineno)
    return lines


def test_text_is_read_and_written_as_utf8():
    """Whatever the locale says: studies of one machine are read on another. Of tests, the modules that help others."""
    helpers = [path for path in (ROOT / "tests").rglob("*.py") if not path.name.startswith("test_")]
    paths = [*MODULES, *helpers, *(ROOT / "docs").glob("*.py")]
    lines_of = {str(path.relative_to(ROOT)): without_encoding(path.read_text(encoding="utf-8")) for path in paths}
    assert {name: lines for name, lines in lines_of.items() if lines} == {}, "say encoding='utf-8'"
    for bad in (
        "p.read_text()",
        "p.write_text(x)",
        "open(p)",
        "p.open('w')",
        "gzip.open(p, 'rt')",
        "run(x, text=True)",
    ):
        assert without_encoding(bad), bad
    for good in (
        "open(p, 'rb')",
        "os.open(p, 1)",
        "gzip.open(p)",
        "p.read_text(encoding='utf-8')",
        "Column(text=False)",
    ):
        assert not without_encoding(good), good


def test_names_say_what_they_hold():
    """No function, argument or variable is called by a word that could be anything."""
    vague, bound = {"found", "one", "said", "tell", "told", "thing"}, set()
    for path in [*MODULES, *(ROOT / "tests").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            stored = isinstance(getattr(node, "ctx", None), ast.Store) or isinstance(node, (ast.FunctionDef, ast.arg))
            names = {getattr(node, field, None) for field in ("name", "arg", "id", "attr")} if stored else set()
            bound |= {f"{path.relative_to(ROOT)}:{node.lineno}: {name}" for name in names & vague}
    assert not bound


def test_planted_faults_stand_in_the_code():
    """One whose code was rewritten would be planted no more (tests/golden/plant.py)."""
    assert [fault.name for fault in read_faults(FAULTS) if not is_there(fault)] == []


def test_no_source_names_a_machine():
    """Paths of one machine, and package index addresses, do not belong into the repository."""
    words = re.compile("|".join(["/" + "root/", "/" + "work/", "/" + "home/", "/" + "Users/", "index" + "-url"]))
    suffixes = {".py", ".md", ".toml", ".yaml", ".yml", ".txt", ".ipynb", ""}
    places = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [f for f in folders if f not in GENERATED and not f.endswith(("_cache", ".egg-info"))]
        for path in (Path(folder, file) for file in files if Path(file).suffix in suffixes and file != ".git"):
            lines = path.read_text(errors="replace").splitlines()
            places += [f"{path.relative_to(ROOT)}:{i}" for i, line in enumerate(lines, 1) if words.search(line)]
    assert not places


def test_constraints_are_pins_and_cover_the_dependencies():
    import tomllib

    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line) for line in lines)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + [r for extra in project["optional-dependencies"].values() for r in extra]
    names = {re.split(r"[<>=\[;]", r)[0].strip().lower().replace("_", "-") for r in wanted} - {"linear-scaling"}
    assert names <= {line.split("==")[0] for line in lines}


@pytest.mark.parametrize(
    ("modules", "without"),
    [
        (
            "arch.config, arch.presets, arch.registry, flops, scaling.cli.flops",
            {"torch", "numpy", "transformers", "pandas", "scipy"},
        ),
        # torch's compiler and transformers take longer to import than a small evaluation takes
        ("arch.model.lm, arch.model.decode", {"torch._dynamo", "torch._inductor", "transformers"}),
    ],
    ids=["sizing tools", "a model"],
)
def test_what_is_imported_comes_without_what_takes_long(modules, without):
    code = f"import json, sys, {modules}; print(json.dumps(sorted(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(json.loads(result.stdout)) & without


def test_no_function_but_a_kernel_takes_more_than_ten_parameters():
    """Options that belong together are a dataclass. `arch` runs kernels; two functions are still to be split."""
    to_be_split = {"analysis.fits.solver.fit_surfaces", "analysis.report.page.page"}
    wide = {
        f"{name}.{node.name}"
        for name, path in NAMES.items()
        if not name.startswith(("arch.", "benchmarks."))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]) > 10
    }
    assert wide <= to_be_split
