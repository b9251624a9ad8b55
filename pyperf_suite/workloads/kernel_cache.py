"""Machine code that NVRTC made, kept on disk between processes.

A file that is damaged, or another kernel's, is a miss: the kernel is compiled again and the file replaced. Nothing is
read that another user could have written, for what is read here runs on the GPU and in this process.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyperf_suite import files

MAGIC = b"pyperf_suite kernel 2\n"
LARGEST_BYTES = 256 * 2**20


@dataclass(frozen=True)
class CompiledKernel:
    """Machine code, what the compiler printed, the seconds it took to get them, and whether they were kept."""

    cubin: bytes
    log: str
    seconds: float
    from_cache: bool


class KernelCache:
    """A compiler of kernels (`_native.cuda.Compiler`) that remembers; `folder` "" keeps nothing on disk."""

    def __init__(self, compiler: Any, folder: str) -> None:
        self._compiler, self._folder = compiler, Path(folder) if folder else None
        self._compiled: dict[str, tuple[bytes, str]] = {}
        self._lock = threading.Lock()
        self._warned = False

    def compile(
        self, name: str, source: str, headers: Mapping[str, str], architecture: str, options: Sequence[str]
    ) -> CompiledKernel:
        """The machine code of a source. Raises what the compiler raises; a folder of no use is warned of once."""
        began = time.perf_counter()
        all_it_sees = [self._compiler.version, architecture, list(options), name, source, sorted(headers.items())]
        key = hashlib.sha256(json.dumps(all_it_sees).encode()).hexdigest()
        with self._lock:
            found = self._compiled.get(key) or self._load(key)
            kept = found is not None
            if found is None:
                compiled = self._compiler.compile(name, source, dict(headers), architecture, list(options))
                found = bytes(compiled.cubin), str(compiled.log)
                self._store(key, *found)
            self._compiled[key] = found
        return CompiledKernel(*found, time.perf_counter() - began, kept)

    def _load(self, key: str) -> tuple[bytes, str] | None:
        if self._folder is None or not self._folder.exists():
            return None
        path = self._folder / f"{key}.kernel"
        foreign = files.why_not_private(self._folder) or files.why_not_private(path)
        if foreign:
            self._warn(foreign)
            return None
        try:
            content = files.read_bytes(path, LARGEST_BYTES)
        except OSError:
            return None
        magic, digest, body = content[: len(MAGIC)], content[len(MAGIC) :][:32], content[len(MAGIC) + 32 :]
        if magic != MAGIC or hashlib.sha256(key.encode() + body).digest() != digest:
            return None
        log_bytes = int.from_bytes(body[:8], "little")
        return body[8 + log_bytes :], body[8 : 8 + log_bytes].decode()

    def _store(self, key: str, cubin: bytes, log: str) -> None:
        if self._folder is None:
            return
        text = log.encode()
        body = len(text).to_bytes(8, "little") + text + cubin
        content = MAGIC + hashlib.sha256(key.encode() + body).digest() + body
        try:
            if not self._folder.exists():
                self._folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._folder.mkdir(exist_ok=True, mode=0o700)
            foreign = files.why_not_private(self._folder)
            if foreign:
                self._warn(foreign)
                return
            files.write_whole(self._folder / f"{key}.kernel", content, mode=0o600)
        except OSError as error:
            self._warn(error.strerror or str(error))

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"Compiled kernels cannot be kept in {self._folder} ({why}), so each process compiles its own: set "
                "PYPERF_CACHE_DIR to a folder of your own that can be written.",
                RuntimeWarning,
                stacklevel=4,
            )
