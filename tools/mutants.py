"""Mutants of one module, run against its tests: `make mutants MODULE=pyperf_suite/measure/sampling.py`.

A mutant has one number, comparison, operator or returned value changed, and survives where all tests pass.
"""

from __future__ import annotations

import ast
import copy
import importlib
import os
import random
import re
import runpy
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[1]
CHANGES = """Lt:LtE,GtE LtE:Lt,Gt Gt:GtE,LtE GtE:Gt,Lt Eq:NotEq NotEq:Eq In:NotIn NotIn:In Is:IsNot IsNot:Is
And:Or Or:And Add:Sub Sub:Add Mult:Div Div:Mult FloorDiv:Mult Mod:Mult Pow:Mult"""
OPERATORS = dict(change.split(":") for change in CHANGES.split())
# Python runs sitecustomize.py of PYTHONPATH when it starts, so that processes which tests start have the mutant too.
HOOK = """
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import spec_from_file_location

class Loader(SourceFileLoader):
    def get_code(self, name):
        with open({mutant!r}) as file:
            return compile(file.read(), self.path, "exec")

class Finder:
    def find_spec(name, path=None, target=None):
        if name == {module!r}:
            return spec_from_file_location(name, {source!r}, loader=Loader(name, {source!r}))

sys.meta_path.insert(0, Finder)
"""


def changed(node: ast.AST) -> Iterator[ast.AST]:
    """The mutants of one node, without those of its children."""
    new = copy.deepcopy(node)
    if isinstance(new, ast.Constant) and type(new.value) in (int, float):
        yield ast.Constant(new.value + 1 if type(new.value) is int or not new.value else new.value * 1.25)
    elif isinstance(new, ast.Compare):
        for other in OPERATORS[type(new.ops[0]).__name__].split(","):
            yield ast.Compare(new.left, [getattr(ast, other)(), *new.ops[1:]], new.comparators)
    elif isinstance(new, ast.BoolOp | ast.BinOp) and type(new.op).__name__ in OPERATORS:
        new.op = getattr(ast, OPERATORS[type(new.op).__name__])()
        yield new
    elif isinstance(new, ast.UnaryOp) and isinstance(new.op, ast.Not):
        yield new.operand
    elif isinstance(new, ast.Return) and new.value and not isinstance(new.value, ast.Constant):
        yield ast.Return(ast.Constant(None))


def mutants(source: str) -> Iterator[tuple[int, str, str]]:
    """Line, change and source text of each mutant."""
    tree = ast.parse(source)
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            for index, node in enumerate(value if isinstance(value, list) else [value]):
                for new in changed(node) if isinstance(node, ast.AST) else ():
                    many = isinstance(value, list)
                    setattr(parent, field, [*value[:index], new, *value[index + 1 :]] if many else new)
                    yield node.lineno, f"{ast.unparse(node)}  →  {ast.unparse(new)}", ast.unparse(tree)
                    setattr(parent, field, value)


def run(arguments: Sequence[str], limit_s: float, hook: Path | None = None) -> tuple[bool, str]:
    """Run pytest in a process of its own; return whether it passed in time, and its output."""
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if not child:
            os.setsid()
            os.dup2(output.fileno(), 1)
            if hook:
                runpy.run_path(str(hook))
            os._exit(importlib.import_module("pytest").main(["-q", "-p", "no:cacheprovider", "--tb=no", *arguments]))
        end = time.monotonic() + limit_s
        while not (done := os.waitpid(child, os.WNOHANG))[0]:
            time.sleep(0.02)
            if time.monotonic() > end:
                os.killpg(child, signal.SIGKILL)
        output.seek(0)
        return done[1] == 0, output.read()


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("tests", nargs=-1)
@click.option("--most", "max_mutants", default=60, show_default=True, help="How many mutants are drawn.")
@click.option("--seed", default=0, show_default=True, help="Of the draw.")
@click.option("--together", is_flag=True, help="Go on after a failure, and print which tests fail together.")
def main(source: Path, tests: tuple[str, ...], max_mutants: int, seed: int, together: bool) -> None:
    """Print which mutants of SOURCE are killed by TESTS: without them, by those that mirror the module."""
    os.chdir(ROOT)
    module, changed = ".".join(source.with_suffix("").parts).removesuffix(".__init__"), [*mutants(source.read_text())]
    drawn = sorted(random.Random(seed).sample(changed, min(max_mutants, len(changed))))
    # Test files of the same room that have the module's name or import it; else any that import it.
    imports = re.compile(rf"\b{module}\b|from {module.rpartition('.')[0]} import .*\b{source.stem}\b")
    room = ROOT / "tests" / (source.parts[1] if source.parts[1] in ("planner", "node") else f"core/{source.parts[1]}")
    files = [each for each in sorted((ROOT / "tests").rglob("test_*.py")) if imports.search(each.read_text())]
    mirrored = [*sorted(room.rglob(f"test_{source.stem}.py")), *(each for each in files if each.is_relative_to(room))]
    arguments = [*(tests or map(str, dict.fromkeys(mirrored or files))), "-m", "not slow and not gpu"]
    for name in ("hypothesis", "numpy", "pytest", "scipy.stats"):  # once, before the process forks for each mutant
        importlib.import_module(name)
    begin = time.monotonic()
    passed, text = run([*arguments, "-rA"], 3600)
    if not passed:
        raise click.ClickException(f"the tests fail without a mutant:\n{text}")
    usual_s, names = time.monotonic() - begin, re.findall(r"^PASSED (.+)", text, re.MULTILINE)
    print(f"{source}: {len(drawn)} of {len(changed)} mutants, seed {seed}, {len(names)} tests in {usual_s:.0f} s")
    killers, killed = defaultdict(list), 0
    with tempfile.TemporaryDirectory() as folder:
        mutant, hook = Path(folder) / "mutant.py", Path(folder) / "sitecustomize.py"
        hook.write_text(HOOK.format(mutant=str(mutant), source=str(ROOT / source), module=module))
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
        for number, (line, change, text) in enumerate(drawn):
            mutant.write_text(text)
            passed, output = run(arguments if together else [*arguments, "-x"], 10 + 3 * usual_s, hook)
            killed += not passed
            for name in (by := re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)):
                killers[name].append(number)
            print(f"{'survived' if passed else 'killed  '} {source}:{line}  {change}", *by[:1], sep="  ", flush=True)
    print(f"{killed} of {len(drawn)} killed: {killed / len(drawn):.0%}")
    for numbers in sorted(set(map(tuple, map(killers.__getitem__, names)))) if together else ():
        group = [name.rpartition("/")[2] for name in names if tuple(killers[name]) == numbers]
        print(f"{len(numbers)} killed by each of {len(group)}:", *group, sep="\n  ")


if __name__ == "__main__":
    main()
