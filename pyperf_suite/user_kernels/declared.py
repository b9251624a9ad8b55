"""Find kernels that a user's file declares, and their names in records; no value of it is imported here."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any

from pyperf_suite.errors import Failed, Unsupported, UserError
from pyperf_suite.hardware.memory import limit_bytes
from pyperf_suite.user_kernels.audit.processes import UserProcess, interpreter

# First folders on the path of a user's code, and the folder that a FILE is relative to.
PATH_VARIABLE, ROOT_VARIABLE = "PYPERF_KERNEL_PATH", "PYPERF_KERNEL_ROOT"

Scalar = bool | int | float | str
_libraries: dict[str, str] = {}


def root(source: str = "") -> Path:
    """Folder that a file or module is relative to: the first in PYPERF_KERNEL_ROOT with it, else the current one's."""
    folders = [Path(each) for each in os.environ.get(ROOT_VARIABLE, "").split(os.pathsep) if each]
    having = (each for each in folders if source.endswith(".py") and (each / source).is_file())
    return next(having, folders[-1] if folders else root_of(Path.cwd()))


def root_of(folder: Path) -> Path:
    """Folder that files are named relative to, wherever one stands: the top of a git checkout or project, or it."""
    above = (folder, *folder.parents)
    places = (each for name in (".git", "pyproject.toml") for each in above if (each / name).exists())
    return next(places, folder)


def canonical(name: str) -> str:
    """A user's name as records have it, FILE relative to the root. Raises UserError for no file and two of a name."""
    source, function = split(name)
    if not source.endswith(".py"):
        return name
    is_set = os.environ.get(ROOT_VARIABLE) not in (None, os.pathsep.join(_roots))
    places = (Path(source), root(source) / source)
    path = next((each.resolve() for each in (places[::-1] if is_set else places) if each.is_file()), None)
    if path is None:
        raise UserError(f"There is no file {source[:200]}: name one that declares kernels with @suite.kernel.")
    top = root().resolve() if is_set else root_of(path.parent)
    relative = Path(os.path.relpath(path, top)).as_posix()
    if not is_set:
        # Processes of this one find the file.
        here = root_of(Path.cwd())
        namesake = _named.setdefault((here, relative), path)
        if namesake != path:
            raise UserError(
                f"{namesake} and {path} are both called {relative} in records, for neither lies in a git checkout or "
                "has a pyproject.toml above it: measure one after the other, each into --results of its own."
            )
        if top != here and str(top) not in _roots:
            _roots[:] = [str(top), *(_roots or [str(here)])]
            os.environ[ROOT_VARIABLE] = os.pathsep.join(_roots)
    return f"{relative}:{function}" if function else relative


# Folders of files elsewhere than around the current one, which comes last, for processes of this one; and files named.
_roots: list[str] = []
_named: dict[tuple[Path, str], Path] = {}


@dataclass(frozen=True)
class Described:
    """A kernel as its file declares it: no value of it is imported."""

    name: str
    axes: Mapping[str, Mapping[str, Sequence[Scalar]]]
    implementations: Sequence[str]


# Kernels of each file, by module and name in one. Those of a file that was described need no process of their own.
kernels_of: dict[str, tuple[Described, ...]] = {}


def describe(target: str) -> tuple[Described, ...]:
    """The kernels of a user's file, module or name. Raises UserError if it declares none, or cannot make inputs."""
    target = canonical(target)
    if target not in kernels_of:
        source = split(target)[0]
        try:
            process = UserProcess(interpreter(), source, 60.0, limit_bytes())
            with contextlib.closing(process):
                _libraries[source] = str(process.ask("start", **start_request(target, "cpu"))["library"])
                reported = process.ask("describe", kernel=split(target)[1], seed=secrets.randbits(63))["kernels"]
        except (Failed, Unsupported) as reason:
            raise UserError(str(reason)) from None
        for each in reported:
            if "error" in each:
                raise UserError(f"{each['file']}:{each['line']}: {each['error']}")
        found = tuple(
            Described(f"{source}:{each['name']}", each["axes"], tuple(each["implementations"])) for each in reported
        )
        kernels_of.update({**{each.name: (each,) for each in found}, target: found})
    return kernels_of[target]


@functools.cache
def parameters_of(names: tuple[str, ...]) -> type:
    """The frozen dataclass of a kernel with these axes; the same for the same names."""
    fields: list[Any] = [(name, Scalar) for name in names]
    return make_dataclass("UserParameters", fields, frozen=True)


def start_request(name: str, device: str) -> dict[str, Any]:
    """The first request to whoever imports the file: what to import, from where, and the device."""
    path = [each for each in os.environ.get(PATH_VARIABLE, "").split(os.pathsep) if each]
    source = split(name)[0]
    return {"root": str(root(source)), "path": path, "target": source, "device": device}


def split(name: str) -> tuple[str, str]:
    """The file or module of a name, and the function in it, empty where none is named."""
    if name.endswith(".py") or ":" not in name:
        return name, ""
    source, _, function = name.rpartition(":")
    return source, function


def library_of(source: str) -> str:
    """Return the array library of a file or module that was described."""
    return _libraries.get(source, "numpy")
