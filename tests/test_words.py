"""Plain words: how docstrings and comments begin, and which names say nothing of the thing that they name."""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("pyperf_suite", "kernels", "tools", "tests", "csrc")
SUBJECTLESS = {"What", "Whether", "Those", "That", "Of", "Where", "Who", "Which", "So"}
VAGUE = re.compile(r"[.:!?]\s+What is\b|\bso many\b", re.IGNORECASE)
# A source without a match holds no vague text: most are not read any further.
MAY_BE_VAGUE = re.compile(rf"[\"'#/*]\W*(?:{'|'.join(sorted(SUBJECTLESS))})\b|(?i:what\s+is|so\s+many)")
PRONOUNS = {
    *("each", "found", "known", "those", "whole", "held", "given", "made", "said", "taken", "what", "other"),
    *("apart", "all", "few", "far", "least", "most", "one", "own", "rest", "seen", "some", "such", "them", "this"),
}
# Fields that JSON, columns and remarks spell, by file: their names are promised.
PROMISED = {
    *(("pyperf_suite/node/check.py", "what"), ("pyperf_suite/node/check.py", "found")),
    *(("pyperf_suite/node/fleet.py", "what"), ("pyperf_suite/regressions/stored/series.py", "what")),
    ("pyperf_suite/probes/baseline.py", "other"),
}
# A variable may have such a name for this many lines.
SHORT_LIFE_LINES = 5
# Texts and names that are left, by part: these numbers go down only.
MOST_TEXTS: dict[str, int] = {}
MOST_NAMES: dict[str, int] = {}

Function = ast.FunctionDef | ast.AsyncFunctionDef
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# Comments of C++ and CUDA, a block of lines at a time; texts in quotes come first, for they may hold two slashes.
C_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|/\*.*?\*/|(?:^[ \t]*//[^\n]*\n)+|//[^\n]*', re.DOTALL | re.MULTILINE)


def part_of(path: Path) -> str:
    folders = path.relative_to(ROOT).parts[:-1]
    return "/".join(folders[: 2 if folders[0] in ("pyperf_suite", "tests") else 1])


def paths(*suffixes: str) -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in suffixes]


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of every text that stands as a statement of its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def python_comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of every block of comment lines and of every comment behind code."""
    block: list[str] = []
    first, last = 0, (-1, -1)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, column = token.start
        is_alone = token.line[:column].isspace() or not column
        if not (is_alone and (line - 1, column) == last):
            yield first, " ".join(block)
            block, first = [], line
        block.append(token.string.lstrip("#: "))
        last = (line, column) if is_alone else (-1, -1)
    yield first, " ".join(block)


def c_comments(source: str) -> Iterator[tuple[int, str]]:
    for match in C_COMMENT.finditer(source):
        if not match[0].startswith('"'):
            yield source.count("\n", 0, match.start()) + 1, re.sub(r"^[\s/*]+", "", match[0], flags=re.MULTILINE)


def is_vague(text: str) -> bool:
    first = re.search(r"\w+", text)
    return bool(first and first[0] in SUBJECTLESS) or bool(VAGUE.search(re.sub(r"\s+", " ", text)))


def vague_texts() -> Iterator[tuple[str, str]]:
    """Yield the part and the place of every text that begins with no subject, or counts without a number."""
    for path in paths(".py", ".cpp", ".h", ".cu", ".cuh"):
        source = path.read_text()
        if not MAY_BE_VAGUE.search(source):
            continue
        if path.suffix == ".py":
            texts = [*docstrings(ast.parse(source)), *python_comments(source)]
        else:
            texts = list(c_comments(source))
        for line, text in texts:
            if is_vague(text):
                yield part_of(path), f"{path.relative_to(ROOT)}:{line}: {text[:60]}"


def is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def is_pronoun(name: str) -> bool:
    return name.strip("_").lower() in PRONOUNS and not is_dunder(name)


def parameters(function: Function | ast.Lambda) -> list[ast.arg]:
    arguments = function.args
    stars = [star for star in (arguments.vararg, arguments.kwarg) if star]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *stars]


def binds(scope: ast.AST, name: str) -> bool:
    """True if a nested function, lambda or comprehension has a variable of its own by that name."""
    if isinstance(scope, COMPREHENSIONS):
        targets = [node for generator in scope.generators for node in ast.walk(generator.target)]
        return any(isinstance(node, ast.Name) and node.id == name for node in targets)
    return isinstance(scope, Function | ast.Lambda) and any(argument.arg == name for argument in parameters(scope))


def lines_of(scope: ast.AST, name: str) -> Iterator[int]:
    """Yield the lines on which a scope's own variable appears."""
    for node in ast.iter_child_nodes(scope):
        if binds(node, name):
            continue
        if (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.arg) and node.arg == name):
            yield node.lineno
        yield from lines_of(node, name)


def variables(scope: ast.AST) -> Iterator[str]:
    """Yield the names that a function assigns, without those of nested scopes."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        if not isinstance(node, (*COMPREHENSIONS, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            yield from variables(node)


def long_lived(function: Function) -> set[str]:
    names = set()
    for name in filter(is_pronoun, set(variables(function))):
        lines = list(lines_of(function, name))
        if max(lines) - min(lines) > SHORT_LIFE_LINES:
            names.add(name)
    return names


def assigned(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements of a module or a class assign."""
    for statement in body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            yield from variables(statement)


def vague_names_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and name of parameters, attributes, constants and long-lived variables named by a pronoun."""
    for node in ast.walk(tree):
        if isinstance(node, Function) and not is_dunder(node.name):
            arguments = {argument.arg for argument in parameters(node)}
            for name in {*filter(is_pronoun, arguments), *long_lived(node)}:
                yield node.lineno, name
        elif isinstance(node, ast.ClassDef | ast.Module):
            for name in filter(is_pronoun, assigned(node.body)):
                yield getattr(node, "lineno", 1), name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_pronoun(node.attr):
            yield node.lineno, node.attr


def vague_names() -> Iterator[tuple[str, str]]:
    """Yield the part and the place of every name that is a pronoun or a bare adjective, but for promised ones."""
    for path in paths(".py"):
        file = path.relative_to(ROOT).as_posix()
        for line, name in vague_names_of(ast.parse(path.read_text())):
            if (file, name) not in PROMISED:
                yield part_of(path), f"{file}:{line}: {name}"


def beyond(places: list[tuple[str, str]], limits: dict[str, int]) -> list[str]:
    """Return the places of parts that have more of them than their number allows."""
    counts = Counter(part for part, _ in places)
    return [place for part, place in places if counts[part] > limits.get(part, 0)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Whether it is.", True),
        ("Return so many\nsamples.", True),
        ("Fit it. What is left is noise.", True),
        ("Return what is left.", False),
        ("Somewhat slower.", False),
    ],
)
def test_a_text_without_a_subject_is_seen(text, expected):
    assert is_vague(text) is expected


def test_names_of_long_life_are_seen_and_those_of_nested_scopes_are_not():
    source = """
FAR = 1
def measure(known, cases):
    each = 1
    short = [found for found in cases]
    one = 2
    one += 1
    print(lambda each: each)


    return short
def wait(cases):
    found = []



    cases()

    return found
class Case:
    held: int
    def __eq__(self, other):
        self.seen = other
"""
    assert sorted(name for _, name in vague_names_of(ast.parse(source))) == ["FAR", "found", "held", "known", "seen"]


def test_comments_of_both_languages_are_read_by_blocks():
    assert [text for _, text in python_comments("x = 1  # of a\n# one\n# two\n\n# three\n") if text] == [
        *("of a", "one two", "three")
    ]
    assert [text for _, text in c_comments('int x; // a\n// one\n// two\nf("//"); /* b */\n')] == [
        "a",
        "one\ntwo\n",
        "b */",
    ]


def test_docstrings_and_comments_begin_with_a_subject_or_a_verb():
    assert not beyond(list(vague_texts()), MOST_TEXTS)


def test_names_say_which_record_case_slice_or_figure_they_are():
    assert not beyond(list(vague_names()), MOST_NAMES)
