"""Read the small text files by which a Linux kernel describes the machine, below a root that tests replace.

A file that is absent, unreadable or not what it should be reads as None: no oddity may stop a measurement.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


@dataclass(frozen=True)
class KernelFiles:
    """The files below `root`; paths are given relative to it, as in `proc/cpuinfo`."""

    root: Path = Path("/")

    def text(self, path: str) -> str | None:
        """The file's text, stripped; None where it cannot be read or is empty."""
        try:
            # A device tree ends its strings with a NUL.
            return (self.root / path).read_bytes().decode("utf-8", "replace").strip("\0 \n\t") or None
        except (OSError, ValueError):
            return None

    def integer(self, path: str) -> int | None:
        """The file's content as a whole number; None where it is none."""
        return parse_integer(self.text(path))

    def matching(self, pattern: str) -> list[str]:
        """The paths that match a glob pattern, sorted, relative to the root."""
        try:
            return sorted(str(path.relative_to(self.root)) for path in self.root.glob(pattern))
        except OSError:
            return []

    def resolved(self, path: str) -> str:
        """The file that a path leads to once links are followed; the path itself where they lead nowhere."""
        try:
            return str((self.root / path).resolve())
        except (OSError, RuntimeError):
            return str(self.root / path)

    def exists(self, path: str) -> bool:
        try:
            return (self.root / path).exists()
        except OSError:
            return False


def parse_integer(text: str | None) -> int | None:
    """A whole number in decimal, or None."""
    return int(text) if text and re.fullmatch(r"[+-]?[0-9]{1,30}", text.strip()) else None


def parse_bytes(text: str | None) -> int | None:
    """A size as the kernel writes it (`48K`, `2048K`, `491520 KB`) in bytes, or None."""
    match = re.fullmatch(r"([0-9]{1,15})\s*([KMG]?)i?B?", (text or "").strip(), re.IGNORECASE)
    return int(match[1]) * UNITS[match[2].upper()] if match else None


def parse_cpu_list(text: str | None) -> frozenset[int]:
    """The CPUs of a list as the kernel writes it (`0-3,8,10-11`); empty where the text is no such list."""
    cpus: set[int] = set()
    for part in (text or "").split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", part.strip())
        if match is None:
            return frozenset()
        cpus.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(cpus)


def cpu_list(cpus: Iterable[int]) -> str:
    """The inverse of `parse_cpu_list`: `0-3,8,10-11`; empty where there are none.

    >>> cpu_list({0, 1, 2, 8})
    '0-2,8'
    """
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][-1] + 1:
            runs[-1][1:] = [cpu]
        else:
            runs.append([cpu])
    return ",".join("-".join(str(end) for end in run) for run in runs)
