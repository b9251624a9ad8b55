"""What NCCL says of itself in its log: the algorithm and protocol that it chose for each size.

Written by rank processes that run with `ENVIRONMENT`; the lines of many ranks may be mixed, and whole prefixes lost.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# The subsystem that prints what is read here.
ENVIRONMENT = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "TUNING"}

# NCCL puts each process's number for %p.
_FILE_VARIABLE, _FILE = "NCCL_DEBUG_FILE", "pyperf_suite_nccl.%p.log"

# ncclFuncToString of NCCL 2.28, src/misc/utils.cc, in this suite's words.
OPERATIONS = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "AlltoAll": "all_to_all",
    "Gather": "gather",
    "Scatter": "scatter",
    "SendRecv": "send_receive",
}
# Of these NCCL's count, and with it the bytes that a named choice is logged with, is of one rank's block.
COUNTED_BY_RANK = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
# NCCL_ALGO_* and NCCL_PROTO_* of src/include/nccl_common.h: until 2.23 or so they were logged by number.
ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
PROTOCOLS = ("LL", "LL128", "SIMPLE")

_CHOICE = re.compile(
    r"(?:(?P<operation>[A-Za-z]{4,20}): {1,20})?(?P<bytes>[0-9]{1,18}) Bytes -> Algo (?P<algorithm>\w{1,20}) "
    r"proto (?P<protocol>\w{1,20})(?: channel\{Lo\.\.Hi\}=\{(?P<low>[0-9]{1,4})\.\.(?P<high>[0-9]{1,4})\})?"
)


@dataclass(frozen=True)
class Choice:
    """How NCCL runs one operation at one size.

    `operation` is None where an older version did not log it, and NCCL's own word where this suite has none.
    `size_bytes` is as logged: of one rank's block for named operations of `COUNTED_BY_RANK`, else of the whole
    message. `channels` is None where they were not logged.
    """

    operation: str | None
    size_bytes: int
    algorithm: str
    protocol: str
    channels: int | None = None


def environment() -> dict[str, str]:
    """What to start ranks with so that each writes its log into a file of its own in the folder of temporary files."""
    return ENVIRONMENT | {_FILE_VARIABLE: str(Path(tempfile.gettempdir()) / _FILE)}


def own_file(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The file that this process's NCCL writes its log into; None where it was started without one."""
    named = environ.get(_FILE_VARIABLE, "")
    return Path(named.replace("%p", str(os.getpid()))) if named.endswith(_FILE) else None


def choices(text: str) -> list[Choice]:
    """Those in a log of NCCL 2.18 to 2.28, of one rank or of several mixed; what is not NCCL's is passed over."""
    # More than one to a line: ranks that share a terminal do not wait for each other's line ends.
    return [_choice(match) for line in text.splitlines() for match in _CHOICE.finditer(line)]


def choice_for(text: str, operation: str, size_bytes: int, ranks: int) -> Choice | None:
    """The last choice logged for messages of `size_bytes`, the S of nccl-tests, among `ranks`; None without one."""
    logged_bytes = size_bytes // ranks if operation in COUNTED_BY_RANK else size_bytes
    fitting = {(operation, logged_bytes), (None, size_bytes)}
    return next((one for one in reversed(choices(text)) if (one.operation, one.size_bytes) in fitting), None)


def _choice(match: re.Match[str]) -> Choice:
    channels = int(match["high"]) - int(match["low"]) + 1 if match["low"] else None
    operation = match["operation"]
    return Choice(
        operation and OPERATIONS.get(operation, operation),
        int(match["bytes"]),
        _name(match["algorithm"], ALGORITHMS),
        _name(match["protocol"], PROTOCOLS),
        channels,
    )


def _name(word: str, names: tuple[str, ...]) -> str:
    """The name of what was logged by name or by number; a number that has no name yet stays one."""
    known = word.isascii() and word.isdigit() and int(word) < len(names)
    return names[int(word)] if known else word.upper()
