"""No shell is ever given a string built from data: every process is started from a list of words."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path
    for folder in ("pyperf_suite", "kernels", "tools", ".ci", ".")
    for path in (ROOT / folder).glob("*.py" if folder == "." else "**/*.py")
)
STARTERS = {"run", "Popen", "call", "check_call", "check_output"}
# These hand their text to a shell, whatever it is.
SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "pty.spawn"}
ASYNCHRONOUS_SHELL = "create_subprocess_shell"


def faults(tree: ast.AST) -> Iterator[str]:
    """What in a source file hands text to a shell, or runs a text as a program."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called in SHELLS or called.endswith(ASYNCHRONOUS_SHELL) or called in ("eval", "exec"):
            yield f"line {node.lineno}: {called}"
        for keyword in node.keywords:
            if keyword.arg == "shell" and not (
                isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            ):
                yield f"line {node.lineno}: shell={ast.unparse(keyword.value)}"
        starts = called in {f"subprocess.{name}" for name in STARTERS}
        if starts and node.args and isinstance(node.args[0], ast.Constant | ast.JoinedStr | ast.BinOp):
            yield f"line {node.lineno}: {called} of a text"
        if called.startswith(("os.exec", "os.spawn")):
            words = [word for word in node.args if isinstance(word, ast.Constant)]
            if any(word.value in ("sh", "bash", "/bin/sh", "-c") for word in words):
                yield f"line {node.lineno}: {called} of a shell"
        if starts and node.args and isinstance(node.args[0], ast.List | ast.Tuple):
            first = node.args[0].elts[:1]
            if first and isinstance(first[0], ast.Constant) and first[0].value in ("sh", "bash", "/bin/sh"):
                yield f"line {node.lineno}: {called} of a shell"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_source_hands_text_to_a_shell(path):
    assert not list(faults(ast.parse(path.read_text())))


@pytest.mark.parametrize(
    "text",
    [
        "subprocess.run(f'ls {name}', shell=True)",
        "subprocess.run(['ls'], shell=asked)",
        "subprocess.Popen('ls ' + name)",
        "subprocess.run(['sh', '-c', name])",
        "os.system(name)",
        "os.execvp('sh', ['-c', name])",
        "await asyncio.create_subprocess_shell(name)",
        "eval(name)",
    ],
)
def test_what_would_hand_text_to_a_shell_is_found(text):
    assert list(faults(ast.parse(text)))


def test_a_list_of_words_is_no_fault():
    assert not list(faults(ast.parse("subprocess.run([program, name], check=False)")))
