"""No program is built from data: every process is started from a list of words, and no text is run as a program."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [
    *ROOT.glob("*.py"),
    *(path for name in ("pyperf_suite", "kernels", "tools", ".ci") for path in (ROOT / name).rglob("*.py")),
]
STARTERS = {f"subprocess.{name}" for name in ("run", "Popen", "call", "check_call", "check_output")}
# These hand their text to a shell, whatever it is, or run it.
SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "pty.spawn", "eval", "exec"}
SHELL_NAMES = {"sh", "bash", "/bin/sh"}


def faults(text: str) -> Iterator[str]:
    """What in a source file hands text to a shell, or runs a text as a program."""
    if not re.search(r"shell|subprocess|os\.|pty|eval|exec", text):
        return
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        called, first = ast.unparse(node.func), (node.args or [None])[0]
        words = [
            first,
            *getattr(first, "elts", [])[:1],
            *(node.args if called.startswith(("os.exec", "os.spawn")) else []),
        ]
        shell = [
            keyword for keyword in node.keywords if keyword.arg == "shell" and ast.unparse(keyword.value) != "False"
        ]
        starts_text = called in STARTERS and isinstance(first, ast.Constant | ast.JoinedStr | ast.BinOp)
        starts = called in STARTERS or called.startswith(("os.exec", "os.spawn"))
        starts_shell = starts and any(isinstance(word, ast.Constant) and word.value in SHELL_NAMES for word in words)
        if shell or starts_text or starts_shell or called in SHELLS or called.endswith("create_subprocess_shell"):
            yield f"line {node.lineno}: {ast.unparse(node)[:100]}"


def test_no_source_hands_text_to_a_shell():
    assert len(SOURCES) > 50
    assert not [f"{path}: {fault}" for path in SOURCES for fault in faults(path.read_text())]


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
    assert list(faults(text))


def test_a_list_of_words_is_no_fault():
    assert not list(faults("subprocess.run([program, name], check=False)"))
