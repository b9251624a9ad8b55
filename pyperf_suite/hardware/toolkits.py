"""The C++ compiler and the CUDA toolkits of this machine: neither is needed to run, both matter where builds fail."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyperf_suite.hardware.kernel_files import KernelFiles

COMPILERS = ("c++", "g++", "clang++")
DEADLINE_S = 5.0


@dataclass(frozen=True)
class Compiler:
    """The command that an install would use, and the first line of its `--version`, None where it does not answer."""

    command: str
    version: str | None
    asked: bool  # $CXX names it


@dataclass(frozen=True)
class Toolkit:
    """A folder with CUDA's compiler in it, and the toolkit's version, None where no file tells it."""

    folder: str
    version: str | None


def compiler(environment: Mapping[str, str]) -> Compiler | None:
    """$CXX where it is set, else the first of `COMPILERS` on the PATH; None where there is none."""
    asked = environment.get("CXX", "").strip()
    for command in [asked] if asked else COMPILERS:
        words = _words(command)
        if words and shutil.which(words[0], path=environment.get("PATH")):
            return Compiler(command, _first_line([*words, "--version"]), bool(asked))
    return Compiler(asked, None, True) if asked else None


def toolkits(files: KernelFiles, environment: Mapping[str, str]) -> tuple[Toolkit, ...]:
    """Those of CUDA_HOME, CUDA_PATH, the PATH and the usual folders, each once."""
    named = [environment[name].strip("/") for name in ("CUDA_HOME", "CUDA_PATH") if environment.get(name)]
    on_path = [folder.strip("/").rpartition("/")[0] for folder in environment.get("PATH", "").split(":") if folder]
    usual = [*files.matching("usr/local/cuda*"), "opt/cuda"]
    found: dict[str, Toolkit] = {}
    for folder in (*named, *on_path, *usual):
        if folder and files.exists(f"{folder}/bin/nvcc"):
            found.setdefault(
                files.resolved(f"{folder}/bin/nvcc"), Toolkit(f"/{folder}", _toolkit_version(files, folder))
            )
    return tuple(found.values())


def _toolkit_version(files: KernelFiles, folder: str) -> str | None:
    """What version.json says, or version.txt, which toolkits before 11.1 had."""
    try:
        version = json.loads(files.text(f"{folder}/version.json") or "{}")["cuda"]["version"]
    except (ValueError, KeyError, TypeError):
        match = re.search(r"CUDA Version (\S+)", files.text(f"{folder}/version.txt") or "")
        return match[1] if match else None
    return str(version)


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
