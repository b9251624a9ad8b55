"""What NCCL says of itself in its log: version, transports, and the algorithm and protocol it chose for each size.

Written by rank processes that run with `ENVIRONMENT`; the lines of many ranks may be mixed, and whole prefixes lost.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

# The subsystems that print what is parsed here; GRAPH has the transports of older versions.
ENVIRONMENT = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,TUNING"}

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

_VERSION = re.compile(r"NCCL version ([0-9]{1,3}(?:\.[0-9]{1,4}){1,3}(?:\+\w+[0-9.]*)?)")
_CHOICE = re.compile(
    r"(?:(?P<operation>[A-Za-z]{4,20}): {1,20})?(?P<bytes>[0-9]{1,18}) Bytes -> Algo (?P<algorithm>\w{1,20}) "
    r"proto (?P<protocol>\w{1,20})(?: channel\{Lo\.\.Hi\}=\{(?P<low>[0-9]{1,4})\.\.(?P<high>[0-9]{1,4})\})?"
)
_TRANSPORT = re.compile(r"Channel [0-9]{1,4}(?:/[0-9]{1,4})? ?: .{1,80}? via ([A-Z][A-Z0-9]{1,9}(?:/\w{1,30}){0,4})")
_COUNT = re.compile(r"\b([0-9]{1,5}) (coll|collnet|nvls|p2p) channels\b(?! per peer)")
_RANKS = re.compile(r"\bn[Rr]anks ([0-9]{1,7})\b")
_NODES = re.compile(r"\bnNodes ([0-9]{1,7})\b")
_WARNING = re.compile(r"NCCL WARN (.{1,500})")


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

    def __str__(self) -> str:
        channels = f", {self.channels} channels" if self.channels else ""
        return f"{self.algorithm}/{self.protocol}{channels}"


@dataclass(frozen=True)
class NcclLog:
    """All that was found; whatever was not logged is None or empty.

    `transports` counts the connections by kind, as in `P2P/CUMEM` or `NET/IB/GDRDMA`. `channels` is their number by
    kind: coll, collnet, nvls, p2p. `ranks` and `nodes` are of the largest communicator. `warnings` appear once each.
    """

    version: str | None = None
    choices: tuple[Choice, ...] = ()
    transports: Mapping[str, int] = field(default_factory=dict)
    channels: Mapping[str, int] = field(default_factory=dict)
    ranks: int | None = None
    nodes: int | None = None
    warnings: tuple[str, ...] = ()

    def choice(self, operation: str, size_bytes: int, ranks: int) -> Choice | None:
        """The last choice logged for messages of `size_bytes`, the S of nccl-tests, among `ranks`; None without one."""
        logged_bytes = size_bytes // ranks if operation in COUNTED_BY_RANK else size_bytes
        fitting = {(operation, logged_bytes), (None, size_bytes)}
        return next((one for one in reversed(self.choices) if (one.operation, one.size_bytes) in fitting), None)


def environment() -> dict[str, str]:
    """What to start ranks with so that each writes its log into a file of its own in the folder of temporary files."""
    return ENVIRONMENT | {_FILE_VARIABLE: str(Path(tempfile.gettempdir()) / _FILE)}


def own_file(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The file that this process's NCCL writes its log into; None where it was started without one."""
    named = environ.get(_FILE_VARIABLE, "")
    return Path(named.replace("%p", str(os.getpid()))) if named.endswith(_FILE) else None


def parse(text: str) -> NcclLog:
    """Read a log of NCCL 2.18 to 2.28, of one rank or of several mixed; what is not NCCL's is passed over."""
    version: str | None = None
    choices: list[Choice] = []
    transports: Counter[str] = Counter()
    channels: dict[str, int] = {}
    ranks: list[int] = []
    nodes: list[int] = []
    warnings: dict[str, None] = {}
    for line in text.splitlines():
        if named := _VERSION.search(line):
            version = version or named[1]
        # More than one to a line: ranks that share a terminal do not wait for each other's line ends.
        choices += [_choice(match) for match in _CHOICE.finditer(line)]
        transports.update(_kind(match[1]) for match in _TRANSPORT.finditer(line))
        channels.update({kind: int(count) for count, kind in _COUNT.findall(line)})
        ranks += map(int, _RANKS.findall(line))
        nodes += map(int, _NODES.findall(line))
        if warned := _WARNING.search(line):
            warnings[warned[1].strip()] = None
    return NcclLog(
        version,
        tuple(choices),
        dict(transports),
        channels,
        max(ranks, default=None),
        max(nodes, default=None),
        tuple(warnings),
    )


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


def _kind(transport: str) -> str:
    """A transport without the number of its device: NET/IB/3/GDRDMA is NET/IB/GDRDMA whatever the card."""
    return "/".join(part for part in transport.split("/") if not part.isdigit())
