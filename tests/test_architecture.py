"""The layers of the package: who may import whom, and what importing may need."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path

import pyperf_suite

PACKAGE = Path(pyperf_suite.__file__).parent
# Lowest first. A part imports from parts below its own layer, never from beside or above.
LAYERS = (
    ("errors",),
    ("files", "guards", "limits", "nearest", "printable", "processes", "_native", "kernels"),
    ("api", "kernel_arrays"),
    ("hardware",),
    ("laws",),
    ("measure", "ranks"),
    ("workloads",),
    ("runner",),
    ("spec",),
    ("probes",),
    ("history", "advise"),
    ("doctor",),
    ("render",),
    ("pytests",),
    ("commands", "pytest_run"),
    ("cli", "pytest_plugin", "benchmarks"),
    ("__main__",),
)
LAYER = {part: number for number, parts in enumerate(LAYERS) for part in parts}
MEASURING_PATH = (
    "errors",
    "files",
    "guards",
    "limits",
    "nearest",
    "printable",
    "processes",
    "api",
    "kernel_arrays",
    "laws",
    "hardware",
    "measure",
    "ranks",
    "workloads",
    "runner",
    "spec",
    "probes",
    "pytests",
    "pytest_run",
    "pytest_plugin",
    "benchmarks",
)
MEASURING_PATH_MAY_IMPORT = {
    *("click", "numpy", "psutil", "pynvml", "pytest", "pytest_benchmark", "rich", "scipy", "tomli", "torch", "triton"),
    "PIL",  # decodes the JPEG files of one kind of case, which is unsupported without it
}
# What takes long to import or may be absent is imported inside the function that uses it.
ONLY_INSIDE_FUNCTIONS = {
    "PIL",
    "jinja2",
    "markupsafe",
    "matplotlib",
    "plotly",
    "pyarrow",
    "pynvml",
    "ruptures",
    "scipy",
    "torch",
    "triton",
}

# Modules of torch's own classes: whoever prepares a case imports them, inside a function; they may import each other.
OF_TORCH = {
    "pyperf_suite.workloads.training.gpt",
    "pyperf_suite.workloads.training.held_bytes",
    "pyperf_suite.workloads.training.cuts",
}

SOURCES = sorted(PACKAGE.rglob("*.py"))


def part_of(module: str) -> str:
    """The part of the package that a dotted name belongs to; the package itself counts as its lowest."""
    return [*module.split("."), "errors"][1]


def module_of(path: Path) -> str:
    """The dotted name of a source file of the package."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(path: Path, tree: ast.AST) -> Iterator[str]:
    """Dotted names of all that a tree of a source file imports, inside functions too."""
    package = module_of(path) if path.stem == "__init__" else module_of(path).rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = resolve_name("." * node.level + (node.module or ""), package)
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def on_measuring_path(path: Path) -> bool:
    """Whether a source file takes part in a measurement."""
    return part_of(module_of(path)) in MEASURING_PATH


def without_functions(tree: ast.Module) -> ast.Module:
    """What runs when the module is imported: all but function bodies and what only type checkers read."""

    class Remover(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
            return None

        def visit_If(self, node: ast.If) -> ast.AST | None:
            return None if "TYPE_CHECKING" in ast.unparse(node.test) else self.generic_visit(node)

    return Remover().visit(tree)


TREES = {path: ast.parse(path.read_text()) for path in SOURCES}


def own_imports(path: Path) -> set[str]:
    """What a source file imports of the package, as dotted names of modules or of what is in them."""
    return {name for name in imported_modules(path, TREES[path]) if name.split(".")[0] == "pyperf_suite"}


def test_a_module_imports_only_from_layers_below_its_own():
    wrong = []
    for path in SOURCES:
        own = part_of(module_of(path))
        reached = {part_of(name) for name in own_imports(path)} - {own, "__version__"}
        if module_of(path) == "pyperf_suite":
            reached -= {"api"}  # whose names are had from the package, and imported when they are asked for
        wrong += [f"{module_of(path)} imports from {part}" for part in reached if LAYER[part] >= LAYER[own]]
    assert not wrong


def test_the_measuring_path_imports_no_other_third_party_than_those_agreed():
    allowed = set(sys.stdlib_module_names) | MEASURING_PATH_MAY_IMPORT | {"pyperf_suite"}
    wrong = []
    for path in filter(on_measuring_path, SOURCES):
        roots = {name.split(".")[0] for name in imported_modules(path, TREES[path])}
        wrong += [f"{module_of(path)} imports {root}" for root in roots - allowed]
    assert not wrong


def test_heavy_or_optional_packages_are_imported_where_they_are_used():
    wrong = []
    for path in SOURCES:
        of_torch = module_of(path) in OF_TORCH
        names = set(imported_modules(path, without_functions(ast.parse(path.read_text()))))
        heavy = {name.split(".")[0] for name in names} & ONLY_INSIDE_FUNCTIONS - ({"torch"} if of_torch else set())
        lazy = (
            set()
            if of_torch
            else {name for name in names for module in OF_TORCH if f"{name}.".startswith(f"{module}.")}
        )
        wrong += [f"{module_of(path)} imports {name}" for name in heavy | lazy]
    assert not wrong


def test_every_part_of_the_package_has_its_layer():
    parts = {path.stem if path.parent == PACKAGE else path.relative_to(PACKAGE).parts[0] for path in SOURCES}
    assert parts - {"__init__"} <= LAYER.keys()


def test_every_module_imports_without_torch_and_without_the_extension():
    modules = [module_of(path) for path in SOURCES if path.stem != "__main__" and module_of(path) not in OF_TORCH]
    absent = ["torch", "triton", "pynvml", "pyperf_suite._native"]
    program = (
        "import importlib, sys\n"
        f"sys.modules.update(dict.fromkeys({absent!r}))\n"  # None there makes an import fail
        f"for name in {modules!r}: importlib.import_module(name)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_every_folder_of_modules_is_a_package_that_an_installation_takes_along():
    assert not [path.parent for path in SOURCES if not (path.parent / "__init__.py").exists()]
