"""The shape of the package: who may import whom, what importing may need, unique names, and how large it may be.

The lists of exceptions are exact, so that they can only become shorter.
"""

import ast
import functools
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import pyperf_suite

PACKAGE = Path(pyperf_suite.__file__).parent
# Lowest first. A part imports from parts below its own layer, never from its own layer or above.
LAYERS = (
    ("errors",),
    ("files", "extensions", "process", "_native"),
    ("record",),
    ("hardware",),
    ("kernels",),
    ("laws",),
    ("measure", "ranks"),
    ("findings",),
    ("workloads",),
    ("user_kernels",),
    ("runner",),
    ("probes",),
    ("regressions",),
    ("render",),
    ("run",),
    ("pytest_plugin",),
    ("cli",),
    ("planner", "node", "benchmarks"),
    ("__main__",),
)
LAYER = {part: number for number, parts in enumerate(LAYERS) for part in parts}
UPWARD = {
    ("pyperf_suite", "pyperf_suite.user_kernels.api"),  # whose names the package has, imported at first use
    # Kernels of the suite's own are declared as users' are.
    ("pyperf_suite.workloads.attention.attention", "pyperf_suite.user_kernels.api"),
    ("pyperf_suite.workloads.matmul", "pyperf_suite.user_kernels.api"),
    ("pyperf_suite.workloads.matmul.matmul", "pyperf_suite.user_kernels.api"),
    ("pyperf_suite.workloads.operator", "pyperf_suite.user_kernels.api"),
}
CIRCLES = {frozenset({"pyperf_suite", "pyperf_suite.user_kernels.api"})}
# How large each part may be: modules and lines. These go down only, but for what an issue says that it adds:
# tools/nightly.py took 100, a GPU's time at one clock the rest; the folder record five modules.
MOST_MODULES_AND_LINES = {"core": (179, 45_593), "planner": (49, 10_777), "node": (21, 4_117)}
# The package and tools together, and lines of one module, and modules in one folder.
MOST_LINES_OF_ALL, MOST_LINES, MOST_IN_A_FOLDER = 64_390, 640, 24

ABOVE_MEASURING = {"regressions", "render", "cli", "planner", "node", "__main__"}
MEASURING_MAY_IMPORT = {
    *("click", "numpy", "psutil", "pynvml", "pytest", "pytest_benchmark", "rich", "scipy", "tomli", "torch", "triton"),
}
# Packages that take long to import or may be absent are imported inside the function that uses them.
ONLY_INSIDE_FUNCTIONS = {
    *(
        "jinja2",
        "markupsafe",
        "matplotlib",
        "plotly",
        "pyarrow",
        "pynvml",
        "scipy",
        "torch",
        "triton",
    ),
}
# Modules of torch's own classes: whoever prepares a case imports them, inside a function; they may import each other.
OF_TORCH = {
    "pyperf_suite.workloads.rounding",
    "pyperf_suite.workloads.training.gpt",
    "pyperf_suite.workloads.training.held_bytes",
    "pyperf_suite.planner.workloads.cuts",
}


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def trees() -> dict[str, ast.Module]:
    return {name: ast.parse(path.read_text()) for name, path in SOURCES.items()}


def part_of(module: str) -> str:
    """The part of the package that a dotted name belongs to; the package itself counts as its lowest."""
    return [*module.split("."), "errors"][1]


def imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Dotted names of all that nodes import; imports are absolute everywhere."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, ast.unparse(node)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_module(name: str) -> str:
    """The module of the package that a dotted name is, or is in."""
    while name not in SOURCES and "." in name and name != "pyperf_suite._native":
        name = name.rpartition(".")[0]
    return name


@functools.cache
def names() -> dict[str, set[str]]:
    """Names that each module imports, inside functions too."""
    return {name: set(imported(ast.walk(tree))) for name, tree in trees().items()}


@functools.cache
def own() -> dict[str, set[str]]:
    """The modules of the package among them."""
    return {
        name: {own_module(each) for each in held if each.split(".")[0] == "pyperf_suite"} - {name}
        for name, held in names().items()
    }


def test_a_module_imports_only_from_layers_below_its_own():
    parts = {part_of(name) for name in SOURCES}
    assert parts <= LAYER.keys(), "every part has its layer"
    upward = {
        (name, other)
        for name, others in own().items()
        for other in others
        if part_of(name) != part_of(other) and LAYER[part_of(other)] >= LAYER[part_of(name)]
    }
    assert upward == UPWARD


def test_no_two_modules_import_each_other_directly_or_through_others():
    @functools.cache
    def reached(name):
        found, waiting = set(), [name]
        while waiting:
            fresh = own().get(waiting.pop(), set()) - found
            found |= fresh
            waiting += fresh
        return frozenset(found)

    circles = {frozenset(other for other in reached(name) if name in reached(other)) for name in own()}
    assert circles - {frozenset()} == CIRCLES


def test_no_two_public_classes_have_one_name():
    counts = Counter(
        node.name
        for tree in trees().values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert not [name for name, count in counts.items() if count > 1]


def test_each_part_is_small_enough_to_be_known():
    lines = {name: len(path.read_text().splitlines()) for name, path in SOURCES.items()}
    tools = sum(len(path.read_text().splitlines()) for path in (PACKAGE.parent / "tools").rglob("*.py"))
    parts = {name: name.split(".")[1] if name.split(".")[1:2] in (["planner"], ["node"]) else "core" for name in lines}
    folders = Counter(path.parent.relative_to(PACKAGE) for path in SOURCES.values() if path.stem != "__init__")
    for part, (most_modules, most_lines) in MOST_MODULES_AND_LINES.items():
        of_part = [count for name, count in lines.items() if parts[name] == part]
        assert len(of_part) <= most_modules, part
        assert sum(of_part) <= most_lines, part
    assert sum(lines.values()) + tools <= MOST_LINES_OF_ALL
    assert not {name: count for name, count in lines.items() if count > MOST_LINES}
    assert not {folder: count for folder, count in folders.items() if count > MOST_IN_A_FOLDER}
    assert not [path.parent for path in SOURCES.values() if not (path.parent / "__init__.py").exists()]


def test_what_measures_imports_no_other_third_party_than_those_agreed():
    allowed = set(sys.stdlib_module_names) | MEASURING_MAY_IMPORT | {"pyperf_suite"}
    measuring = {name: held for name, held in names().items() if part_of(name) not in ABOVE_MEASURING}
    assert not [(name, each) for name, held in measuring.items() for each in held if each.split(".")[0] not in allowed]


def run_by_import(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported: none within functions, nothing for type checkers alone."""
    for node in body:
        yield node
        for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if not isinstance(node, ast.FunctionDef) and not for_types:
            for inner in ("body", "handlers", "orelse", "finalbody"):
                yield from run_by_import(getattr(node, inner, ()))


def test_heavy_or_optional_packages_are_imported_where_they_are_used():
    wrong = []
    for name, tree in trees().items():
        at_once = set(imported(run_by_import(tree.body)))
        heavy = {each.split(".")[0] for each in at_once} & ONLY_INSIDE_FUNCTIONS
        if name in OF_TORCH:
            heavy -= {"torch"}
        else:
            heavy |= {each for each in at_once if own_module(each) in OF_TORCH}
        wrong += [(name, each) for each in heavy]
    assert not wrong


@pytest.mark.slow
def test_every_module_imports_without_torch_and_without_the_extension():
    modules = [name for name in SOURCES if part_of(name) != "__main__" and name not in OF_TORCH]
    absent = ["torch", "triton", "pynvml", "pyperf_suite._native"]
    program = (
        "import importlib, sys\n"
        f"sys.modules.update(dict.fromkeys({absent!r}))\n"  # None there makes an import fail
        f"for name in {modules!r}: importlib.import_module(name)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
