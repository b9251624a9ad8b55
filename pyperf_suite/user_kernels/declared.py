"""Which kernels a user's file declares, and under which names records have them; no value of it is imported here."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any

from pyperf_suite.errors import Failed, Unsupported, UserError
from pyperf_suite.files import top_of
from pyperf_suite.hardware.memory import limit_bytes
from pyperf_suite.user_kernels.audit.processes import UserProcess, interpreter
from pyperf_suite.user_kernels.reference import secret_seed

# What comes first on the path of a user's code, and what a FILE is relative to.
PATH_VARIABLE, ROOT_VARIABLE = "PYPERF_KERNEL_PATH", "PYPERF_KERNEL_ROOT"

Scalar = bool | int | float | str
# Of each file or module that was described, what its arrays are of.
_libraries: dict[str, str] = {}


def root() -> Path:
    """What FILE is relative to: PYPERF_KERNEL_ROOT, else the top of the git checkout, else this folder."""
    reported = os.environ.get(ROOT_VARIABLE)
    if reported:
        return Path(reported)
    return top_of(Path.cwd()) or Path.cwd()


def canonical(name: str) -> str:
    """A user's name as records have it: FILE relative to the root. Raises UserError for a file that is not there."""
    source, function = split(name)
    if not source.endswith(".py"):
        return name
    top = root()
    places = (Path(source), top / source)
    for path in reversed(places) if ROOT_VARIABLE in os.environ else places:
        if path.is_file():
            relative = Path(os.path.relpath(path.resolve(), top.resolve())).as_posix()
            return f"{relative}:{function}" if function else relative
    raise UserError(f"There is no file {source[:200]}: name one that declares kernels with @suite.kernel.")


@dataclass(frozen=True)
class Described:
    """A kernel as its file declares it: no value of it is imported."""

    name: str
    axes: Mapping[str, Mapping[str, Sequence[Scalar]]]
    implementations: Sequence[str]


@functools.cache
def describe(target: str) -> tuple[Described, ...]:
    """The kernels of a user's file, module or of one name in it, as a process of its own describes them.

    Raises UserError for what cannot be imported, holds no kernel, or whose inputs cannot be made for any case.
    """
    target = canonical(target)
    try:
        process = UserProcess(interpreter(), split(target)[0], 60.0, limit_bytes())
        with contextlib.closing(process):
            _libraries[split(target)[0]] = str(process.ask("start", **start_request(target, "cpu"))["library"])
            reported = process.ask("describe", kernel=split(target)[1], seed=secret_seed())["kernels"]
    except (Failed, Unsupported) as reason:
        raise UserError(str(reason)) from None
    source = split(target)[0]
    for each in reported:
        if "error" in each:
            raise UserError(f"{each['file']}:{each['line']}: {each['error']}")
    return tuple(
        Described(f"{source}:{each['name']}", each["axes"], tuple(each["implementations"])) for each in reported
    )


@functools.cache
def parameters_of(names: tuple[str, ...]) -> type:
    """The frozen dataclass of a kernel with these axes; the same for the same names."""
    fields: list[Any] = [(name, Scalar) for name in names]
    made: type = make_dataclass("UserParameters", fields, frozen=True)
    return made


def start_request(name: str, device: str) -> dict[str, Any]:
    """The first request to whoever imports the file: what to import, from where, and the device."""
    path = [each for each in os.environ.get(PATH_VARIABLE, "").split(os.pathsep) if each]
    return {"root": str(root()), "path": path, "target": split(name)[0], "device": device}


def split(name: str) -> tuple[str, str]:
    """The file or module of a name, and the function in it, empty where none is named."""
    if name.endswith(".py") or ":" not in name:
        return name, ""
    source, _, function = name.rpartition(":")
    return source, function


def library_of(source: str) -> str:
    """What arrays of a file or module that was described are of."""
    return _libraries.get(source, "numpy")
