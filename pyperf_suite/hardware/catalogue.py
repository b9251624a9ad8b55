"""Data sheets of GPUs from gpus.toml, and properties that all GPUs of a compute capability have in common."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.files import parse_toml

CATALOGUE = Path(__file__).with_name("gpus.toml")
# The names that peaks go by, widest first. A GPU lacks those that it has no units for.
DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4")
# Drivers and people write these or leave them out; they distinguish no two GPUs.
MAKERS_WORDS = r"\b(nvidia|tesla|geforce|quadro|amd|instinct|gpu)\b"
NAMES_OFFERED = 3


@dataclass(frozen=True)
class Architecture:
    """Properties that all GPUs of one compute capability share. Limits are those of one multiprocessor.

    `generation` is the one whose default blocks our Triton kernels take, `cuda_kernels` the family of our CUDA kernels.
    `features` are "tma" (copies of tensors by descriptor) and "float8_sums" (NCCL adds float8). `nvlink` and `pcie` are
    names of `hardware.links`, `float64_lanes` the multiply-adds in float64 of a cycle. A limit of 0 is not known.
    """

    compute_capability: tuple[int, int]
    pcie: str
    nvlink: str | None = None
    generation: str = "Ampere"
    cuda_kernels: str | None = None
    features: tuple[str, ...] = ()
    resident_blocks: int = 0
    resident_warps: int = 0
    float64_lanes: int = 2
    shared_bytes: int = 0
    shared_block_bytes: int = 0  # the most that one block may ask for
    models: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        """As compilers write it: sm_90."""
        return "sm_{}{}".format(*self.compute_capability)


@dataclass(frozen=True)
class GpuSpec:
    """One kind of GPU. Rates are dense and per second: FLOP (int8: operations), bytes; sizes are bytes.

    `boost_mhz` is the clock that the peaks belong to where their source names one. `peak_flop_per_s` has a key of
    `DTYPES` for each dtype that the GPU has units for, accumulated in fp32. `link_bytes_per_s` is one direction of all
    links to other GPUs together, None where there are none but the host's; `link_peers` how many others they go to, an
    equal share to each, None where a switch joins all; `host_link_bytes_per_s` is of what joins it to the CPU where
    that is not PCIe. Where each value is from stands in gpus.toml.
    """

    name: str
    aliases: tuple[str, ...]
    architecture: str
    compute_capability: tuple[int, int] | None  # None for GPUs that CUDA does not run on
    sms: int  # multiprocessors; AMD's compute units
    boost_mhz: float
    memory_bytes: int
    memory_bytes_per_s: float
    l2_bytes: int
    peak_flop_per_s: Mapping[str, float]
    link_bytes_per_s: float | None
    power_w: float
    host_link_bytes_per_s: float | None = None
    link_peers: int | None = None

    def __str__(self) -> str:
        return self.name

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def slug(self) -> str:
        """The name as part of a file's name: h200_sxm."""
        return re.sub(r"[^a-z0-9]+", "_", self.name.lower())

    def peak(self, dtype: str) -> float:
        """FLOP/s of dense products in that dtype (`DTYPES`); raises UserError where the GPU has no units for it."""
        if dtype not in self.peak_flop_per_s:
            there = ", ".join(self.peak_flop_per_s)
            raise UserError(f"{self.name} has no units for {dtype!r}: ask for one of {there}.")
        return self.peak_flop_per_s[dtype]


def find_gpu(name: str) -> GpuSpec:
    """The GPU of that name as its maker, a driver or a person writes it. Raises UserError with the nearest names.

    A name that leaves out form or memory means the one sold most: "A100" is the SXM module with 80 GB.
    """
    gpu = _by_key().get(_key(name))
    if gpu is None:
        import difflib

        near = difflib.get_close_matches(_key(name[:80]), list(_by_key()), n=2 * NAMES_OFFERED, cutoff=0.5)
        offered = list(dict.fromkeys(_by_key()[key].name for key in near))[:NAMES_OFFERED]
        choice = f"did you mean {' or '.join(offered)}?" if offered else f"it has {', '.join(map(str, all_gpus()))}."
        raise UserError(f"There is no GPU {name[:80]!r} in the catalogue: {choice}")
    return gpu


def capability_of(name: str) -> tuple[int, int] | None:
    """The compute capability by a GPU's name, or of all GPUs with its model's word, as H200; None if they differ.

    So a variant that the catalogue lacks has one, as the H200 NVL.
    """
    exact = _by_key().get(_key(name))
    if exact is not None:
        return exact.compute_capability
    words = set(re.findall("[a-z0-9]+", name.lower()))
    # The first word with a number names the model: h100 of "H100 SXM", 6000 of "RTX 6000 Ada".
    models = {gpu: re.findall("[a-z]*[0-9][a-z0-9]*", gpu.name.lower())[:1] for gpu in all_gpus()}
    found = {gpu.compute_capability for gpu, model in models.items() if words.intersection(model)}
    found |= {each.compute_capability for each in architectures() if words.intersection(each.models)}
    return found.pop() if len(found) == 1 else None


def capability(written: str | Sequence[int]) -> tuple[int, int]:
    """A compute capability, of (9, 0), "9.0" or a compiler's target such as "sm_90a"; ValueError for anything else."""
    if not isinstance(written, str):
        major, minor = written
        return major, minor
    match = re.fullmatch(r"sm_(\d{1,3})(\d)[af]?|(\d{1,3})\.(\d)", written)
    if match is None:
        raise ValueError(f"{written!r} is not a target: write it as in sm_90.")
    return int(match[1] or match[3]), int(match[2] or match[4])


def architecture(written: str | Sequence[int]) -> Architecture:
    """The architecture of a compute capability or target; of one that is not listed, the newest listed before it."""
    listed = (each for each in architectures() if each.compute_capability <= capability(written))
    return max(listed, key=operator.attrgetter("compute_capability"))


@functools.cache
def architectures() -> tuple[Architecture, ...]:
    """Every architecture of the catalogue, the oldest first."""
    units = {"shared_kib": ("shared_bytes", 1024), "shared_block_kib": ("shared_block_bytes", 1024)}
    sheets = []
    for entry in _catalogue()["architecture"]:
        values: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in entry.items()}
        for name, (field, unit) in units.items():
            if name in values:
                values[field] = values.pop(name) * unit
        sheets.append(Architecture(**values))
    return tuple(sorted(sheets, key=operator.attrgetter("compute_capability")))


@functools.cache
def all_gpus() -> tuple[GpuSpec, ...]:
    """Every GPU of the catalogue, by architecture from the oldest."""
    return tuple(_spec(entry) for entry in _catalogue()["gpu"])


@functools.cache
def _catalogue() -> dict[str, Any]:
    return parse_toml(CATALOGUE.read_text(encoding="utf-8"))


def _spec(entry: Mapping[str, Any]) -> GpuSpec:
    """An entry of gpus.toml in plain units: memory in GiB, which drivers report, of nearly the number sold as GB."""
    written, link = entry.get("compute_capability"), entry.get("link_gb_per_s")
    values = {
        "name": entry["name"],
        "aliases": tuple(entry.get("aliases", ())),
        "architecture": entry["architecture"],
        "compute_capability": None if written is None else capability(written),
        "sms": entry["sms"],
        "boost_mhz": float(entry["boost_mhz"]),
        "memory_bytes": int(entry["memory_gib"] * 2**30),
        "memory_bytes_per_s": entry["memory_gb_per_s"] * 1e9,
        "l2_bytes": int(entry["l2_mib"] * 2**20),
        "peak_flop_per_s": {
            dtype: entry["peak_tflop_per_s"][dtype] * 1e12 for dtype in DTYPES if dtype in entry["peak_tflop_per_s"]
        },
        "link_bytes_per_s": None if link is None else link * 1e9,
        "power_w": float(entry["power_w"]),
        "host_link_bytes_per_s": entry["host_link_gb_per_s"] * 1e9 if "host_link_gb_per_s" in entry else None,
        "link_peers": entry.get("link_peers"),
    }
    return GpuSpec(**values)


@functools.cache
def _by_key() -> Mapping[str, GpuSpec]:
    return {_key(name): gpu for gpu in all_gpus() for name in (gpu.name, *gpu.aliases)}


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", re.sub(MAKERS_WORDS, " ", name.lower()))
