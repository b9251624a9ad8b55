"""`pyperf-suite init`: a bench file, a line of .gitignore and a workflow, in a repository that has none of them."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from importlib import metadata, resources
from pathlib import Path

import click

from pyperf_suite import __version__
from pyperf_suite.cli.options import DEFAULT_RESULTS
from pyperf_suite.errors import UserError
from pyperf_suite.files import NotRegular, open_for_appending, top_of

WORKFLOW = Path(".github", "workflows", "kernels.yml")


@click.command()
@click.argument("bench", default="bench_kernels.py", type=click.Path(path_type=Path), metavar="[FILE.py]")
def init(bench: Path) -> None:
    """Write FILE.py that measures a kernel, a line of .gitignore, and a workflow that compares pull requests.

    FILE.py is bench_kernels.py by default. The other two are written at the top of the git repository that it lies in,
    else next to it. A file that exists is left as it is, but for the line that .gitignore gets.

    \b
    Examples:
      pyperf-suite init
      pyperf-suite init benches/bench_softmax.py
    """  # noqa: D301 - click keeps the lines below \b as they are
    if bench.suffix != ".py" or not bench.parent.is_dir() or not str(bench).isprintable():
        raise UserError(
            f"{bench} cannot be a bench file: name one that ends in .py, in a folder that exists, in letters that show."
        )
    folder = bench.parent.resolve()
    top = top_of(folder) or folder
    name = (folder / bench.name).relative_to(top).as_posix()

    here = _as_argument(str(bench))
    in_docstring = here.replace("\\", "\\\\").replace('"', '\\"')
    _say(bench, lambda: _written(bench, _filled("bench.py.txt", FILE=in_docstring)))
    _say(top / ".gitignore", lambda: _ignored(top / ".gitignore", f"{DEFAULT_RESULTS}/"))
    in_workflow = _as_argument(name).replace("${{", "${{ '${{' }}")  # which GitHub would evaluate
    import json  # which `--help` does without

    # Pip's name of this version: the commit of a git URL that it came from, else its name.
    origin = json.loads(metadata.distribution("pyperf_suite").read_text("direct_url.json") or "{}")
    commit = origin.get("vcs_info", {}).get("commit_id")
    suite = f"git+{origin['url']}@{commit}" if commit else f"pyperf_suite=={__version__}"
    workflow = _filled("workflow.yml", FILE=in_workflow, SUITE=suite)
    _say(top / WORKFLOW, lambda: _below(top, top / WORKFLOW, workflow))
    click.echo(f"\nNext: pyperf-suite run {here}")


def _as_argument(name: str) -> str:
    """A file's name as a shell and a command take it for one."""
    return shlex.quote(f"./{name}" if name.startswith("-") else name)


def _say(path: Path, make: Callable[[], str]) -> None:
    """Write a file and print the outcome. Raises UserError where it cannot be written."""
    try:
        said = make()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}.") from None
    here = Path.cwd()
    click.echo(f"{path.relative_to(here) if path.is_relative_to(here) else path}: {said}")


def _below(top: Path, path: Path, content: str) -> str:
    """As `_written`, unless a folder on the way is a symbolic link, which may lead anywhere."""
    for folder in path.relative_to(top).parents:
        if (top / folder).is_symlink() and folder != Path():
            raise NotRegular(top / folder, f"below {folder}, a symbolic link")
    return _written(path, content)


def _written(path: Path, content: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(content)
    except FileExistsError:
        return "exists, and is left as it was"
    return "written"


def _ignored(path: Path, line: str) -> str:
    with open_for_appending(path) as file:
        held = path.read_text("utf-8")
        if {line, f"/{line}", line.rstrip("/")} & set(map(str.strip, held.splitlines())):
            return f"has {line}, and is left as it was"
        file.write(("\n" * (bool(held) and not held.endswith("\n")) + f"{line}\n").encode())
    return f"{line} added"


def _filled(template: str, **values: str) -> str:
    """A template, with values in place of their names."""
    text = (resources.files("pyperf_suite.cli") / "templates" / template).read_text("utf-8")
    for name, value in values.items():
        text = text.replace(name, value)
    return text
