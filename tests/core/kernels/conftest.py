"""Fixtures of tests of kernels: programs compiled once and kept, and processes in which Triton interprets."""

import fcntl
import functools
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from pyperf_suite.kernels import nvrtc
from pyperf_suite.kernels.disassembly import NoDisassembler, disassembler


def version_of(module: ModuleType) -> tuple[int, int]:
    """Major and minor version."""
    major, minor = module.__version__.split(".")[:2]
    return int(major), int(minor)


# Compiled programs are kept by the hash of all their parts; git ignores the folder, and it may be deleted.
KEPT = Path(__file__).parents[3] / "build" / "tests"
FLAGS = ("-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-clobbered")
# Half of a compiler's time goes into these: they are precompiled once for all specialisations.
STANDARD_HEADERS = "algorithm cmath cstdint cstdio cstdlib cstring deque functional map memory random vector"


@functools.cache
def compiler() -> tuple[str, ...]:
    """The C++ compiler's command, or a skip."""
    for command in filter(None, (os.environ.get("CXX"), "c++", "g++", "clang++")):
        if shutil.which(shlex.split(command)[0]):
            return tuple(shlex.split(command))
    pytest.skip("a C++ compiler is needed to emulate kernels: install g++ or name one in CXX")


def kept(result: str, texts: Mapping[str, str], arguments: tuple[str, ...]) -> Path:
    """The file `result` that the compiler makes of these files with these arguments, kept from an earlier run.

    Workers may ask at once: one compiles while the others wait, and the folder appears whole.
    """
    version = subprocess.run([*compiler(), "--version"], capture_output=True, text=True, check=True).stdout
    key = hashlib.sha256(json.dumps([version, compiler(), arguments, dict(texts)]).encode()).hexdigest()[:32]
    KEPT.mkdir(parents=True, exist_ok=True)
    folder = KEPT / key
    with (KEPT / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=KEPT) as made:
                for name, text in texts.items():
                    (Path(made) / name).parent.mkdir(parents=True, exist_ok=True)
                    (Path(made) / name).write_text(text)
                subprocess.run([*compiler(), *arguments, "-o", result], cwd=made, check=True, timeout=900)
                shutil.copytree(made, folder.with_suffix(".new"))
            folder.with_suffix(".new").rename(folder)
    return folder / result


@pytest.fixture(scope="session")
def compiled() -> Callable[[str, Mapping[str, str], tuple[str, ...]], Path]:
    """Compiles what is no emulation of a kernel: compiled("program", {name: text}, ("-O1", "program.cpp"))."""
    return kept


@pytest.fixture(scope="session")
def emulation() -> Callable[..., Path]:
    """Compiles a kernel's emulation: emulation("launch.cpp", {name: text}, "-DTILE_M=64", ...) is the program."""

    def build(source: str, texts: Mapping[str, str], *options: str) -> Path:
        headers = "".join(f"#include <{name}>\n" for name in (*STANDARD_HEADERS.split(), "ucontext.h"))
        sanitizers = tuple(option for option in options if "sanitize" in option)
        precompiled = ("-x", "c++-header", "standard.h")
        ready = kept("standard.h.gch", {"standard.h": headers}, (*FLAGS, *sanitizers, *precompiled))
        # The header is found with what was compiled of it, and by its text if the compiler cannot use that.
        include = ("-I", str(ready.parent), "-include", "standard.h")
        return kept("launch", texts, (*FLAGS, *options, *include, source))

    return build


@pytest.fixture(scope="session", autouse=True)
def machine_code() -> Iterator[None]:
    """Keep NVRTC's machine code by the hash of its inputs, and of its version."""
    compile_anew = nvrtc.compile_cubin

    @functools.wraps(compile_anew)
    def compile_cubin(
        name: str, source: str, headers: Mapping[str, str], architecture: str, options: Sequence[str] = ()
    ) -> nvrtc.Compiled:
        requested = [nvrtc.version(), nvrtc.library()._name, name, source, dict(headers), architecture, list(options)]
        file = KEPT / "nvrtc" / hashlib.sha256(json.dumps(requested).encode()).hexdigest()[:32]
        if file.exists():
            log, cubin = file.read_bytes().split(b"\0", 1)
            return nvrtc.Compiled(cubin, log.decode())
        compiled = compile_anew(name, source, headers, architecture, options)
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as made:
            made.write(compiled.log.encode() + b"\0" + compiled.cubin)
        Path(made.name).replace(file)
        return compiled

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvrtc, "compile_cubin", compile_cubin)
        yield


@pytest.fixture
def tools() -> None:
    """NVRTC and the disassembler, or a skip with the reason."""
    try:
        nvrtc.library()
        disassembler()
    except (nvrtc.NoCompiler, NoDisassembler) as missing:
        pytest.skip(str(missing))


@pytest.fixture
def triton_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton keeps what it compiles by the hash of source and compiler; so that it is there for the next run too."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(KEPT / "triton"))


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Callable[[str], Callable[[dict], dict]]]:
    """Starts a script of this folder, where Triton interprets, and gives what asks it one question at a time."""
    pytest.importorskip("torch")
    triton = pytest.importorskip("triton")
    if version_of(triton) < (3, 7) and version_of(np) >= (2, 4):
        pytest.skip(f"the interpreter of Triton {triton.__version__} cannot loop with numpy {np.__version__}")
    started = []

    @functools.cache
    def start(script: str) -> Callable[[dict], dict]:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(script))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)

        def ask(question: dict) -> dict:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        return ask

    yield start
    for process in started:
        with process:
            process.stdin.close()
