"""The source files that travel with exported weights, so that transformers can load them without this project.

With trust_remote_code=True the library copies one flat folder of modules: those it finds by following lines of the
form `from .name import x` from the module that config.json's auto_map names. So arch/hf/auto.py and every module of
this package below it are given flat names (ops/common.py becomes ops_common.py, a package's __init__.py its folder's
name) and their relative imports are rewritten; nothing else in them changes.
"""

from __future__ import annotations

import ast
import re
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENTRY = "hf.auto"
AUTO_MAP = {
    "AutoConfig": "hf_auto.LinearScalingConfig",
    "AutoModelForCausalLM": "hf_auto.LinearScalingForCausalLM",
}


def remote_code(root: Path = ROOT, entry: str = ENTRY) -> dict[str, str]:
    """File name -> source, of module `entry` of the package at `root` and of all it imports there.

    Raises ValueError, with file and line, for an import that has no flat form: a module imported as a name
    (`from . import x`), an absolute import of the package, two modules with one flat name.
    """
    header = f"# generated from linear-scaling {_version()}\n"
    sources: dict[str, str] = {}
    waiting, seen = [entry], {entry}
    while waiting:
        module = waiting.pop()
        name = flat(module) + ".py"
        if name in sources:
            raise ValueError(f"{module}: another module is {name} too")
        path = _path(root, module)
        sources[name], imported = _flattened(path, module, root)
        sources[name] = header + sources[name]
        waiting += sorted(imported - seen)
        seen |= imported
    return dict(sorted(sources.items()))


def _version() -> str:
    try:
        return metadata.version("linear-scaling")
    except metadata.PackageNotFoundError:
        return "(not installed, version unknown)"


def flat(module: str) -> str:
    """The flat name of a module below the package: "ops.common" -> "ops_common"."""
    return module.replace(".", "_")


def _path(root: Path, module: str) -> Path:
    """The file of a module named from below the package; its __init__.py where it is a package."""
    path = root.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _flattened(path: Path, module: str, root: Path) -> tuple[str, set[str]]:
    """The source with flat imports, and the modules it imports."""
    source = path.read_text(encoding="utf-8")
    lines, imported = source.splitlines(keepends=True), set[str]()
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import) and any(alias.name.split(".")[0] == root.name for alias in node.names):
            raise ValueError(f"{path}:{node.lineno}: write this import of {root.name} as a relative one")
        if not isinstance(node, ast.ImportFrom):
            continue
        if not node.level:
            if node.module and node.module.split(".")[0] == root.name:
                raise ValueError(f"{path}:{node.lineno}: write this import of {root.name} as a relative one")
            continue
        base = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
        target = ".".join(part for part in base if part)
        for alias in node.names:
            if not target or (_path(root, f"{target}.{alias.name}").exists() and not _binds(root, target, alias.name)):
                raise ValueError(f"{path}:{node.lineno}: import names from the module {alias.name}, not itself")
        line = lines[node.lineno - 1]
        # a column counts bytes
        start = len(line.encode()[: node.col_offset].decode())
        head = re.match(r"from\s+\.+[\w.]*\s+import\b", line[start:])
        if head is None:
            raise ValueError(f"{path}:{node.lineno}: write `from .name import` on one line")
        lines[node.lineno - 1] = f"{line[:start]}from .{flat(target)} import{line[start + head.end() :]}"
        imported.add(target)
    return "".join(lines), imported


def _binds(root: Path, package: str, name: str) -> bool:
    """Whether the __init__.py of `package` imports `name` from another module: it is no longer the module then."""
    tree = ast.parse(_path(root, package).read_text(encoding="utf-8"))
    return any(
        (alias.asname or alias.name) == name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    )
