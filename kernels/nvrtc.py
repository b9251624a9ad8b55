"""Compile CUDA source for a target with NVRTC, from torch's CUDA wheels or nvidia-cuda-nvrtc: no device needed."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

# Below site-packages, newest CUDA first: where the wheels of NVIDIA put it.
WHEEL_PATTERNS = ("nvidia/cu1?/lib/libnvrtc.so.1?", "nvidia/cuda_nvrtc/lib/libnvrtc.so.1?")
SONAMES = ("libnvrtc.so.13", "libnvrtc.so.12")


class NoCompiler(Exception):
    """NVRTC cannot be had here; the message is a sentence that says how to get it."""


class DoesNotCompile(Exception):
    """NVRTC refused the source; the message is its log."""


@dataclass(frozen=True)
class Compiled:
    """A binary for one architecture, and what the compiler said, ptxas's report of registers and spills included."""

    cubin: bytes
    log: str


def compile_cubin(
    name: str, source: str, headers: Mapping[str, str], architecture: str, options: Sequence[str] = ()
) -> Compiled:
    """Compile `source`, which may include the `headers` by name, for an architecture such as "sm_80" or "sm_90a".

    Raises:
        NoCompiler: there is no NVRTC, or none that knows the architecture's options.
        DoesNotCompile: with the compiler's log.
    """
    nvrtc = library()
    program = ctypes.c_void_p()
    texts = [text.encode() for text in headers.values()]
    names = [text.encode() for text in headers]
    _check(
        nvrtc.nvrtcCreateProgram(
            ctypes.byref(program),
            source.encode(),
            name.encode(),
            len(texts),
            (ctypes.c_char_p * len(texts))(*texts),
            (ctypes.c_char_p * len(names))(*names),
        )
    )
    try:
        arguments = [f"--gpu-architecture={architecture}", "--ptxas-options=--verbose", *options]
        status = nvrtc.nvrtcCompileProgram(
            program, len(arguments), (ctypes.c_char_p * len(arguments))(*(text.encode() for text in arguments))
        )
        log = _fetch(program, "ProgramLog").rstrip(b"\0").decode("utf-8", "replace").strip()
        if status != 0:
            raise DoesNotCompile(f"{name} for {architecture} with {' '.join(options)}:\n{log or _name(status)}")
        return Compiled(_fetch(program, "CUBIN"), log)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def version() -> tuple[int, int]:
    """NVRTC's version. Raises NoCompiler where there is none."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value


@functools.cache
def library() -> ctypes.CDLL:
    """The opened library. Raises NoCompiler where none opens; an override is never passed over."""
    override = os.environ.get("PYPERF_LIBNVRTC")
    if override and not Path(override).is_absolute():
        raise NoCompiler(f"PYPERF_LIBNVRTC={override} is not an absolute path: name the file from / on.")
    for path in [override] if override else [*wheels(), *SONAMES]:
        try:
            # NVRTC looks for its companion by soname alone, so one in the same folder must be in the process already.
            if Path(path).is_absolute():
                for companion in Path(path).parent.glob("libnvrtc-builtins.so.*"):
                    ctypes.CDLL(str(companion))
            opened = ctypes.CDLL(path)
        except OSError as refusal:
            reason = str(refusal)
        else:
            opened.nvrtcGetErrorString.restype = ctypes.c_char_p
            return opened
    if override:
        raise NoCompiler(f"PYPERF_LIBNVRTC={override} cannot be opened: {reason}.")
    raise NoCompiler("CUDA kernels are compiled by NVRTC, which is not here: pip install nvidia-cuda-nvrtc.")


def wheels(patterns: Sequence[str] = WHEEL_PATTERNS) -> Iterator[str]:
    """Paths of the copies of a library, by default NVRTC, that wheels installed, newest CUDA first."""
    for folder in sys.path:
        for pattern in patterns:
            yield from sorted((str(path) for path in Path(folder or ".").glob(pattern)), reverse=True)


def sources(source: str, headers: Sequence[str]) -> tuple[str, Mapping[str, str]]:
    """The text of a kernel of ours, and of the headers it includes by name."""
    folder = resources.files("pyperf_suite.kernels") / "cuda"
    return (folder / source).read_text("utf-8"), {name: (folder / name).read_text("utf-8") for name in headers}


def _fetch(program: ctypes.c_void_p, product: str) -> bytes:
    """The program's log or binary: NVRTC's pair of functions for its size and its bytes."""
    size = ctypes.c_size_t()
    _check(getattr(library(), f"nvrtcGet{product}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(getattr(library(), f"nvrtcGet{product}")(program, buffer))
    return buffer.raw


def _check(status: int) -> None:
    if status != 0:
        raise NoCompiler(f"NVRTC {'.'.join(map(str, version()))} cannot do this: {_name(status)}.")


def _name(status: int) -> str:
    return str(library().nvrtcGetErrorString(status).decode())
