"""Software that lies on this machine: copies of shared libraries, and the C++ compiler.

Copies are in the order in which `csrc/shared_library.cpp` tries them: a variable that names one, a copy already in the
process, the wheels' paths, then whatever the system's loader finds by name.
"""

from __future__ import annotations

import importlib.metadata
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyperf_suite.hardware.kernel_files import KernelFiles

# Folders of CUDA's libraries by installers that no loader configuration mentions.
FOLDERS = (
    "usr/local/cuda*/lib64",
    "usr/local/cuda*/targets/*/lib",
    "opt/cuda/lib64",
    "opt/nvidia/*/lib",
    "opt/conda/lib",
)
# The loader's own, searched last (ld.so(8)).
TRUSTED = ("lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "usr/lib/aarch64-linux-gnu",
           "lib64", "usr/lib64", "lib", "usr/lib")  # fmt: skip
COMPILERS = ("c++", "g++", "clang++")
DEADLINE_S = 5.0


@dataclass(frozen=True)
class Copy:
    """One file, and what led to it: a variable's name, `wheel`, `loader` or `elsewhere`, which no one looks at."""

    path: str
    found_by: str


def copies(
    files: KernelFiles, sonames: Sequence[str], override: str, wheels: Iterable[str], environment: Mapping[str, str]
) -> tuple[Copy, ...]:
    """Each copy once, in the order in which they are tried, those that are never tried last."""
    places: dict[str, str] = {}
    if environment.get(override):
        places[environment[override]] = override
    for path in wheels:
        places.setdefault(path, "wheel")
    loader = [
        *(folder for folder in environment.get("LD_LIBRARY_PATH", "").split(":") if folder),
        *loader_folders(files),
        *TRUSTED,
    ]
    prefix = environment.get("CONDA_PREFIX", "").strip("/")
    patterns = (*FOLDERS, *([f"{prefix}/lib"] if prefix else []))
    known = [(f"{folder.strip('/')}/{soname}", "loader") for soname in sonames for folder in loader]
    for pattern in (f"{folder}/{soname}" for folder in patterns for soname in sonames):
        known += [(path, "elsewhere") for path in files.matching(pattern)]
    for path, found_by in known:
        if files.exists(path):
            places.setdefault(f"/{path}", found_by)
    seen, kept = set(), []
    for path, found_by in places.items():
        # One name a file: folders such as /lib are often links to others.
        real = files.resolved(path.lstrip("/"))
        if real not in seen:
            seen.add(real)
            kept.append(Copy(path, found_by))
    return tuple(kept)


def loader_folders(files: KernelFiles) -> tuple[str, ...]:
    """The folders that /etc/ld.so.conf and what it includes name, in order (ldconfig(8))."""
    return tuple(dict.fromkeys(_configured(files, "etc/ld.so.conf", depth=4)))


def _configured(files: KernelFiles, path: str, depth: int) -> list[str]:
    folders: list[str] = []
    for line in (files.text(path) or "").splitlines():
        words = line.partition("#")[0].split()
        if len(words) == 2 and words[0] == "include" and depth:
            pattern = words[1] if words[1].startswith("/") else f"/etc/{words[1]}"
            for included in files.matching(pattern.lstrip("/")):
                folders += _configured(files, included, depth - 1)
        elif len(words) == 1 and words[0].startswith("/"):
            folders.append(words[0])
    return folders


def mapped(maps: str, stem: str) -> str | None:
    """The file of a library that lies in a process, by its /proc/self/maps; builtins and stubs are other libraries."""
    for path in re.findall(r"(/\S.*)$", maps, re.MULTILINE):
        name = path.rpartition("/")[2]
        if re.fullmatch(rf"{re.escape(stem)}(-[^/]*)?\.so[.0-9]*", name) and "builtins" not in name:
            return str(path)
    return None


@dataclass(frozen=True)
class Compiler:
    """The command that an install would use, and the first line of its `--version`, None where it does not answer."""

    command: str
    version: str | None
    requested: bool  # $CXX names it


def installed_version(distribution: str) -> str | None:
    """The version of a Python distribution without importing it; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def compiler(environment: Mapping[str, str]) -> Compiler | None:
    """$CXX where it is set, else the first of `COMPILERS` on the PATH; None where there is none."""
    requested = environment.get("CXX", "").strip()
    for command in [requested] if requested else COMPILERS:
        words = _words(command)
        if words and shutil.which(words[0], path=environment.get("PATH")):
            return Compiler(command, _first_line([*words, "--version"]), bool(requested))
    return Compiler(requested, None, True) if requested else None


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # a quotation that does not end
        return []


def _first_line(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=DEADLINE_S
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return done.stdout.strip().partition("\n")[0] or None if done.returncode == 0 else None
