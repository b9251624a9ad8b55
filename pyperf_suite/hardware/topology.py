"""How a machine's GPUs and network cards are wired, read from the matrix that `nvidia-smi topo -m` prints."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Gpu, Unavailable
from pyperf_suite.hardware.links import nvlink_of, pcie_of
from pyperf_suite.hardware.nvml import Nvml

COMMAND = ("nvidia-smi", "topo", "-m")
TIME_LIMIT_S = 30.0

# Nearest first, as nvidia-smi's legend orders them backwards.
PATHS = {
    "PIX": "at most one PCIe bridge",
    "PXB": "several PCIe bridges",
    "PHB": "a PCIe host bridge (the CPU)",
    "NODE": "several host bridges of one NUMA node",
    "SYS": "the link between NUMA nodes",
}
# Words that drivers write for unknown, as for a GPU that is lost or cut up by MIG.
UNKNOWN = ("N/A", "ERR!", "DIS", "U", "?")

COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_TAB = 8
_NVLINK = re.compile(r"NV(\d{1,3})")
_DEVICE = re.compile(r"(?:GPU|NIC)\d{1,4}|[A-Za-z][\w.-]*_\w+|[a-z]+\d[\w-]*")
_GPU = re.compile(r"GPU(\d{1,4})")
_NIC_NAME = re.compile(r"\s*(NIC\d{1,4}):\s*(\S+)\s*")


@dataclass(frozen=True)
class Path:
    """One cell of the matrix: `nvlinks` bonded NVLinks, or a kind of `PATHS`, or None: the driver did not report."""

    kind: str | None
    nvlinks: int = 0

    @property
    def distance(self) -> int:
        """0 for NVLink, then the order of `PATHS`; the largest where it is not known."""
        kinds = ("NVLINK", *PATHS)
        return kinds.index(self.kind) if self.kind in kinds else len(kinds)

    @classmethod
    def parse(cls, cell: str) -> Path:
        """Parse a cell of the matrix, or `str` of a path; an unknown kind has no path."""
        nvlinks = _NVLINK.fullmatch(cell)
        return cls("NVLINK", int(nvlinks[1])) if nvlinks else cls(cell if cell in PATHS else None)

    def __str__(self) -> str:
        if self.nvlinks:
            return f"NV{self.nvlinks}"
        return self.kind or "unknown"

    def peak_gb_per_s(self, compute_capability: tuple[int, int]) -> float | None:
        """GB/s (1e9), one direction, that the path of such GPUs carries at best; None where it is not known.

        Behind every path that is not NVLink stands the PCIe slot: bridges and sockets can only take away from it.
        """
        if self.nvlinks:
            nvlink = nvlink_of(compute_capability)
            return self.nvlinks * nvlink.per_link_gb_per_s if nvlink and nvlink.per_link_gb_per_s else None
        return pcie_of(compute_capability).gb_per_s if self.kind else None


@dataclass(frozen=True)
class LinkGraph:
    """The matrix, by the names that nvidia-smi gives: `GPU0`, and `NIC0` or `mlx5_0`.

    `paths` has both orders of each pair. `nic_names` are the system's names of NIC0 and so on. `numa` and `cpus` are
    the affinities of each GPU as printed, left out where none were.
    """

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    paths: Mapping[tuple[str, str], Path]
    nic_names: Mapping[str, str] = field(default_factory=dict)
    numa: Mapping[str, str] = field(default_factory=dict)
    cpus: Mapping[str, str] = field(default_factory=dict)

    def path(self, first: str | int, second: str | int) -> Path:
        """The path between two devices, GPUs by number or any by name. Raises UserError where there is none."""
        names = tuple(f"GPU{device}" if isinstance(device, int) else device for device in (first, second))
        if names not in self.paths:
            there = ", ".join((*self.gpus, *self.nics))
            raise UserError(f"The path between {names[0]} and {names[1]} was requested; the machine has {there}.")
        return self.paths[names[0], names[1]]

    def nearest_nics(self, gpu: str | int) -> tuple[str, ...]:
        """The network cards with the shortest path to a GPU, by their system's name; empty where there are none."""
        distance = {nic: self.path(gpu, nic).distance for nic in self.nics}
        return tuple(self.nic_names.get(nic, nic) for nic in self.nics if distance[nic] == min(distance.values()))

    def gpus_without_nvlink(self) -> tuple[str, ...]:
        """The GPUs that have NVLink to no other where others have it: not bridged, or their links are down."""
        linked = {gpu for (gpu, _), path in self.paths.items() if path.nvlinks}
        return tuple(gpu for gpu in self.gpus if gpu not in linked) if linked else ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON: the fields, with paths as `GPU0 NIC0`: `PIX`."""
        return {
            "gpus": list(self.gpus),
            "nics": list(self.nics),
            "paths": {f"{one} {other}": str(path) for (one, other), path in self.paths.items()},
            "nic_names": dict(self.nic_names),
            "numa": dict(self.numa),
            "cpus": dict(self.cpus),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LinkGraph:
        paths = {(pair.split(" ")[0], pair.split(" ")[1]): Path.parse(cell) for pair, cell in data["paths"].items()}
        return cls(tuple(data["gpus"]), tuple(data["nics"]), paths, data["nic_names"], data["numa"], data["cpus"])


def parse(text: str) -> LinkGraph:
    """Read what `nvidia-smi topo -m` printed, coloured or not, with tabs or spaces.

    Raises UserError where there is no matrix, or it is cut off or mangled; the sentence says where.
    """
    lines = [COLOURS.sub("", line) for line in text.splitlines()]
    start, devices, columns = _header(lines)
    cells: dict[str, list[str]] = {}
    for line in lines[start + 1 :]:
        first, *others = _cells(line) or [""]
        if first in devices and first not in cells:
            cells[first] = others
        elif line.strip() and cells:
            break
    gpus = tuple(device for device in devices if _GPU.fullmatch(device))
    paths: dict[tuple[str, str], Path] = {}
    # Some driver versions print no rows for network cards: the matrix is symmetric, so the GPUs' rows are enough.
    for row in (*gpus, *(device for device in devices if device in cells and device not in gpus)):
        if row not in cells:
            raise UserError(f"The topology matrix has no row for {row}: run `{' '.join(COMMAND)}` again, whole.")
        if len(cells[row]) < len(devices):
            raise UserError(
                f"The row of {row} in the topology matrix has {len(cells[row])} cells where {len(devices)} devices are "
                f"named: it is cut off or mangled, run `{' '.join(COMMAND)}` again."
            )
        for column, cell in zip(devices, cells[row], strict=False):
            paths[row, column] = _path(cell, row, column)
            paths.setdefault((column, row), paths[row, column])
    affinity = {gpu: cells[gpu][len(devices) :] for gpu in gpus}
    return LinkGraph(
        gpus,
        tuple(device for device in devices if device not in gpus),
        {pair: path for pair, path in paths.items() if pair[0] != pair[1]},
        {match[1]: match[2] for match in map(_NIC_NAME.fullmatch, lines) if match and match[1] in devices},
        _column(affinity, columns, "NUMA Affinity"),
        _column(affinity, columns, "CPU Affinity"),
    )


def read() -> LinkGraph | Unavailable:
    """This machine's link graph, or the reason why it cannot be read."""
    try:
        answer = subprocess.run(COMMAND, capture_output=True, timeout=TIME_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return Unavailable(f"`{' '.join(COMMAND)}` did not answer within {TIME_LIMIT_S:g} s")
    except OSError as refusal:
        return Unavailable(f"`{' '.join(COMMAND)}` cannot be run ({refusal.strerror})")
    printed = answer.stdout.decode("utf-8", "replace")
    if answer.returncode:
        said = (answer.stderr.decode("utf-8", "replace").strip() or printed.strip()).splitlines()
        return Unavailable(f"`{' '.join(COMMAND)}` failed: {said[-1] if said else f'code {answer.returncode}'}")
    try:
        return parse(printed)
    except UserError as mangled:
        return Unavailable(str(mangled).rstrip("."))


def _header(lines: list[str]) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
    """The number of the matrix's first line, its devices in order, and the names of the columns after them."""
    for number, line in enumerate(lines):
        devices: list[str] = []
        for token in line.split():
            if not _DEVICE.fullmatch(token):
                break
            devices.append(token)
        # A row begins with its device too, but goes on with a path rather than with another device.
        if devices and devices[0] == "GPU0" and "X" not in line.split():
            columns = tuple(name for name in ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID") if name in line)
            if len(set(devices)) < len(devices):
                raise UserError("The topology matrix names a device twice in its first line: it is not one matrix.")
            return number, tuple(devices), columns
    raise UserError(f"There is no topology matrix in this text: it should be what `{' '.join(COMMAND)}` prints.")


def _cells(line: str) -> list[str]:
    """The cells of a row by tabs, or by tab stops where blanks took their place; of other rows only the words."""
    line = line.rstrip()
    if "\t" in line:
        return [cell.strip() for cell in line.split("\t")]
    words = list(re.finditer(r"\S+", line))
    if any(word.start() % _TAB > 1 for word in words):  # the X of a device and itself stands behind a blank
        return line.split()
    cells: list[str] = []
    stop = 0
    for word in words:
        cells += [""] * ((word.start() - stop) // _TAB) + [word[0]]
        stop = (word.end() // _TAB + 1) * _TAB
    return cells


def _path(cell: str, row: str, column: str) -> Path:
    nvlinks = _NVLINK.fullmatch(cell)
    if row == column:
        known = cell == "X"
    else:
        known = bool(nvlinks and int(nvlinks[1])) or cell in PATHS or cell in UNKNOWN
    if not known:
        raise UserError(
            f"The topology matrix says {cell!r} between {row} and {column}, which is no path there: it is cut off or "
            f"mangled, run `{' '.join(COMMAND)}` again."
        )
    return Path.parse(cell)


def _column(affinity: Mapping[str, list[str]], columns: tuple[str, ...], name: str) -> dict[str, str]:
    """The cells of one of the columns after the devices; without those that are empty or not applicable."""
    if name not in columns:
        return {}
    place = columns.index(name)
    return {gpu: rest[place] for gpu, rest in affinity.items() if len(rest) > place and rest[place] not in ("", "N/A")}


def wiring(gpus: Sequence[Gpu], manager: Nvml, graph: LinkGraph | Unavailable | None = None) -> dict[str, Any]:
    """For every two GPUs, as in `0-3`, the path between them and the GB/s (1e9) that it carries at best, or null.

    Empty where there are fewer than two, or nvidia-smi does not report. `graph` is read from it if not given.
    """
    if len(gpus) < 2:
        return {}
    graph = read() if graph is None else graph
    names = {gpu.index: f"GPU{manager.index(gpu.uuid)}" for gpu in gpus}
    if isinstance(graph, Unavailable) or not set(names.values()) <= set(graph.gpus):
        return {}
    paths = {}
    for one, other in combinations(gpus, 2):
        path = graph.path(names[one.index], names[other.index])
        peak = path.peak_gb_per_s(one.compute_capability)
        paths[f"{one.index}-{other.index}"] = {"path": str(path), "gb_per_s": peak}
    return paths
