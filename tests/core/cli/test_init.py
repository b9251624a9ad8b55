"""`pyperf-suite init`, and the six commands that docs/your_kernel.md begins with."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from pyperf_suite import __version__
from pyperf_suite.cli.init import WORKFLOW, init
from pyperf_suite.cli.main import CommandLine, main
from pyperf_suite.regressions.verdict import SequentialRule
from tests.core.repository import Repository

GUIDE = Path(__file__).parents[3] / "docs" / "your_kernel.md"


def commands_of(guide: Path) -> list[str]:
    """The lines of a guide's first block of code, without their remarks."""
    block = re.search(r"^```\n(.*?)^```", guide.read_text(), re.MULTILINE | re.DOTALL)
    return [re.sub(r"\s+# .*", "", line) for line in block[1].splitlines()]


def initialised(*arguments: str) -> list[str]:
    done = CliRunner().invoke(init, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """The folder of a repository, stood in."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def content_of(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_what_exists_is_left_as_it_was_and_that_is_said(repository):
    assert [line.rpartition(": ")[2] for line in initialised()[:3]] == ["written", "bench_results/ added", "written"]
    before = content_of(repository)
    assert set(before) == {"bench_kernels.py", ".gitignore", WORKFLOW.as_posix()}
    assert all(line.endswith("left as it was") for line in initialised()[:3])
    assert content_of(repository) == before


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("build/", "build/\nbench_results/\n"),
        ("build/\n", "build/\nbench_results/\n"),
        ("/bench_results/\n", "/bench_results/\n"),
        ("bench_results", "bench_results"),
    ],
)
def test_a_gitignore_gets_its_line_once(repository, content, expected):
    (repository / ".gitignore").write_text(content)
    initialised()
    assert (repository / ".gitignore").read_text() == expected


def test_a_bench_file_in_a_folder_has_the_workflow_at_the_top(repository, monkeypatch):
    (repository / "some benches").mkdir()
    monkeypatch.chdir(repository / "some benches")
    initialised("bench_mine.py")
    assert set(content_of(repository)) == {"some benches/bench_mine.py", ".gitignore", WORKFLOW.as_posix()}
    [line] = [line for line in (repository / WORKFLOW).read_text().splitlines() if line.lstrip().startswith("pyperf")]
    _, name, *words = shlex.split(line)
    parameters = main.get_command(click.Context(main), name).make_context(name, words).params
    assert parameters["probes"] == ("some benches/bench_mine.py",)
    assert (parameters["old"], parameters["new"]) == ("HEAD^1", "HEAD")
    assert parameters["markdown"] == Path("ab.md")
    # Seven pairs of 15 s.
    assert parameters["budget_s"] >= 15 * SequentialRule(margin=parameters["margin"]).looks[0]


@pytest.mark.slow
def test_the_workflow_fails_on_a_slowdown_and_on_nothing_else(tmp_path, monkeypatch):
    """Its own line, in a repository of three commits: the second is slower, the third changes words."""
    mine = Repository(tmp_path / "mine")
    monkeypatch.chdir(mine.root)
    monkeypatch.setenv("PYPERF_CACHE_DIR", str(tmp_path / "cache"))
    initialised()
    bench = (mine.root / "bench_kernels.py").read_text()
    mine.commit("begun")
    slower = bench.replace("weights = np.exp(", "np.exp(x)\n    weights = np.exp(")
    mine.commit("slower", **{"bench_kernels.py": slower})
    [line] = [line for line in (mine.root / WORKFLOW).read_text().splitlines() if line.lstrip().startswith("pyperf")]
    name, *words = shlex.split(line)[1:]

    def run() -> int:
        group = CommandLine(commands={name: main.get_command(click.Context(main), name)})
        return CliRunner().invoke(group, [name, *words, "-a", "n=256"], catch_exceptions=False).exit_code

    assert run() == 1
    mine.commit("words", README="as before")
    assert run() == 0


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        (None, f"pyperf_suite=={__version__}"),
        ({"url": "file:///w.whl", "archive_info": {}}, f"pyperf_suite=={__version__}"),
        ({"url": "https://a.b/c.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}, "git+https://a.b/c.git@abc"),
    ],
)
def test_the_workflow_installs_this_version_from_where_it_came(repository, monkeypatch, origin, requirement):
    came_from = SimpleNamespace(read_text=lambda name: {"direct_url.json": origin and json.dumps(origin)}[name])
    monkeypatch.setattr(metadata, "distribution", lambda _: came_from)
    initialised()
    assert f"pip install '{requirement}'" in (repository / WORKFLOW).read_text()


HOSTILE = '-a"""\\${{ github.token }}\'b$(x).py'


def test_a_name_is_a_name_in_the_docstring_the_workflow_and_the_shell(repository):
    done = CliRunner().invoke(CommandLine(commands={"init": init}), ["init", "--", HOSTILE])
    assert done.exit_code == 0, done.output
    documented = ast.get_docstring(ast.parse((repository / HOSTILE).read_text()))
    command = next(line for line in documented.splitlines() if "pyperf-suite run" in line)
    assert shlex.split(command)[-1] == f"./{HOSTILE}"
    workflow = (repository / ".github/workflows/kernels.yml").read_text()
    (command,) = (line for line in workflow.splitlines() if "pyperf-suite ab" in line)
    assert command.count("${{") == command.count("${{ '${{' }}") + command.count("'${{'") == 2
    words = shlex.split(command.replace("${{ '${{' }}", "${{"))
    assert words[words.index("HEAD") + 1] == f"./{HOSTILE}"


@pytest.mark.parametrize("link", [".gitignore", ".github", ".github/workflows"])
def test_nothing_is_written_through_a_link(repository, tmp_path_factory, link):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    theirs = elsewhere / "theirs"
    if link == ".gitignore":
        theirs.write_text("as it was")
    else:
        theirs.mkdir()
    (repository / link).parent.mkdir(exist_ok=True)
    (repository / link).symlink_to(theirs)
    done = CliRunner().invoke(CommandLine(commands={"init": init}), ["init"])
    assert done.exit_code == 2
    assert "a symbolic link" in done.stderr
    assert theirs.read_text() == "as it was" if link == ".gitignore" else not list(theirs.iterdir())


@pytest.mark.parametrize("name", ["bench_kernels.txt", "absent/bench_kernels.py", "taken/bench_kernels.py"])
def test_what_cannot_be_written_is_one_sentence_and_exit_code_2(repository, name):
    (repository / "taken").write_text("")
    done = CliRunner().invoke(CommandLine(commands={"init": init}), ["init", name])
    assert done.exit_code == 2
    assert re.fullmatch(r"Error: [^\n]+\n", done.stderr)
    assert set(content_of(repository)) == {"taken"}


@pytest.mark.slow
def test_the_six_commands_lead_from_nothing_to_a_comparison_of_two_revisions(tmp_path):
    """Installing, the first, is replaced by the environment that runs this test: `.ci/install_matrix` tries it."""
    folder, outputs = tmp_path / "mine", {}
    folder.mkdir()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    who = {f"GIT_{role}_{what}": "a@b.c" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {**os.environ, **who, "PATH": path, "PYPERF_CACHE_DIR": str(tmp_path / "cache")}
    install, *commands = commands_of(GUIDE)
    assert install.startswith("pip install ")
    assert len(commands) == 5
    for command in commands:
        if " ab " in command:
            bench = folder / "bench_kernels.py"
            bench.write_text(
                bench.read_text().replace("weights = np.exp(", "for _ in range(4):\n        weights = np.exp(")
            )
            command += " --device cpu --json -a n=256 --budget 200"
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
        )
        outputs[command.split()[1]] = done
        assert done.returncode == (1 if " ab " in command else 0), done.stdout + done.stderr
    assert "softmax" in outputs["run"].stdout
    message = json.loads(outputs["ab"].stdout)
    assert [each["verdict"] for each in message["findings"]] == ["slower"]
    assert re.fullmatch(r"\. \(\w+ and changes\) against HEAD \(\w+\) of mine on cpu", message["heading"])
    tracked = subprocess.run(["git", "ls-files"], cwd=folder, capture_output=True, text=True).stdout.split()
    assert set(tracked) == {WORKFLOW.as_posix(), ".gitignore", "bench_kernels.py"}
