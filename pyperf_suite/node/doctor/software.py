"""Compilers, CUDA's libraries, torch and triton: which copies there are, which is opened, and whether they work."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.hardware import software
from pyperf_suite.hardware.kernel_files import KernelFiles
from pyperf_suite.hardware.software import Copy
from pyperf_suite.kernels import nvrtc
from pyperf_suite.node.doctor.check import Check, examined, gib, not_applicable, ok, problem, warning
from pyperf_suite.node.doctor.children import ExaminedProcess
from pyperf_suite.workloads.backends import native_extension
from pyperf_suite.workloads.collective import nccl

OLDEST_PYTHON = (3, 10)
PLUGIN = "pytest-benchmark"
LEAST_FREE_SHARE = 0.8  # of a GPU's memory: torch's own context takes less than a GiB


@dataclass(frozen=True)
class Library:
    """A library that is opened at run time: what it is for, and the names by which its versions are asked."""

    name: str
    stem: str
    override: str
    sonames: tuple[str, ...]
    version_function: str
    package: str
    use: str


NVRTC = Library(
    "NVRTC", "libnvrtc", "PYPERF_LIBNVRTC", ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"),
    "nvrtcVersion", "nvidia-cuda-nvrtc", "compiles the CUDA kernels",
)  # fmt: skip
NCCL = Library(
    "NCCL", "libnccl", "PYPERF_LIBNCCL", ("libnccl.so.2",),
    "ncclGetVersion", "nvidia-nccl-cu13", "runs collectives between GPUs",
)  # fmt: skip


@dataclass(frozen=True)
class Opened:
    """A copy and what a process of its own made of it: {"version": ...} or {"error": ...}."""

    copy: Copy
    answer: Mapping[str, Any]


@dataclass(frozen=True)
class SoftwareReadings:
    """What was found of the software; `torch` is None where it is not installed."""

    extension: str | None  # why it does not load; None where it does
    compiler: software.Compiler | None
    toolkits: tuple[software.Toolkit, ...]
    copies: Mapping[str, tuple[Opened, ...]]  # by the library's name, in the order in which they are tried
    torch: Mapping[str, Any] | None
    python: tuple[int, int, int]
    packages: Mapping[str, str | None]
    gpus: int
    driver_cuda: str | None = None  # the newest CUDA that the driver supports, as in 13.0


def read_software(
    files: KernelFiles, gpus: int, environment: Mapping[str, str] | None = None, driver_cuda: str | None = None
) -> SoftwareReadings:
    """Ask this machine; torch and each library are opened in processes of their own, side by side."""
    environment = os.environ if environment is None else environment
    torch = ExaminedProcess("torch", "yes" if gpus else "no") if software.installed_version("torch") else None
    waiting = {
        library.name: [
            (copy, ExaminedProcess("library", copy.path, library.version_function))
            for copy in software.copies(files, library.sonames, library.override, wheels, environment)
        ]
        for library, wheels in ((NVRTC, list(nvrtc.wheels())), (NCCL, list(nvrtc.wheels(nccl.WHEEL_PATTERNS))))
    }
    return SoftwareReadings(
        extension=_why_no_extension(),
        compiler=software.compiler(environment),
        toolkits=software.toolkits(files, environment),
        copies={
            name: tuple(Opened(copy, child.answer()) for copy, child in children) for name, children in waiting.items()
        },
        torch=torch.answer() if torch else None,
        python=sys.version_info[:3],
        packages={name: software.installed_version(name) for name in ("pytest", PLUGIN, "triton")},
        gpus=gpus,
        driver_cuda=driver_cuda,
    )


def _why_no_extension() -> str | None:
    try:
        native_extension()
    except UserError as error:
        return str(error)
    return None


def python(readings: SoftwareReadings) -> Check:
    """The interpreter."""
    version = ".".join(map(str, readings.python))
    if readings.python[:2] >= OLDEST_PYTHON:
        return ok(f"{platform.python_implementation()} {version}")
    oldest = ".".join(map(str, OLDEST_PYTHON))
    return problem(version, f"Use Python {oldest} or newer.")


def pytest_plugin(readings: SoftwareReadings) -> Check:
    """What `pytest --benchmark-only` needs."""
    missing = [name for name in ("pytest", PLUGIN) if readings.packages.get(name) is None]
    if not missing:
        summary = ", ".join(f"{name} {readings.packages[name]}" for name in ("pytest", PLUGIN))
        return ok(summary)
    found = f"{' and '.join(missing)} not installed: `pytest --benchmark-only` does not run"
    return problem(found, "Install what is missing.", f"pip install {' '.join(missing)}")


def extension(readings: SoftwareReadings) -> Check:
    """The package's own C++."""
    if readings.extension is None:
        return ok("loads")
    return problem(readings.extension, "Build it in the checkout.", "pip install -e .")


def compiler(readings: SoftwareReadings) -> Check:
    """The C++ compiler, which an install and torch.compile on the CPU need."""
    found = readings.compiler
    command = "sudo apt install g++   # or clang++; or set CXX to a compiler's path"
    if found is None:
        return warning("none on the PATH: the extension cannot be built", "Get one.", command)
    if found.version is None:
        said = f"CXX={found.command}" if found.requested else found.command
        return warning(f"{said} cannot be run", "Correct or unset CXX.", command)
    return ok(f"{found.command}: {found.version}")


def cuda_toolkits(readings: SoftwareReadings) -> Check:
    """Toolkits, of which none is needed: NVRTC compiles."""
    if not readings.toolkits:
        return not_applicable("none found, and none is needed: NVRTC compiles the kernels")
    summary = ", ".join(f"{each.version or 'of unknown version'} in {each.folder}" for each in readings.toolkits)
    return ok(f"{summary}; none is needed: NVRTC compiles the kernels")


def library(readings: SoftwareReadings, wanted: Library) -> Check:
    """All copies of a library, which of them a run opens, and why that one."""
    found = readings.copies.get(wanted.name, ())
    chosen, why = _chosen(found, wanted, (readings.torch or {}).get("opened", {}))
    summary = "; ".join(_described(each, chosen) for each in found)
    if chosen is not None:
        if all(each.copy.path != chosen for each in found):
            summary = "; ".join(filter(None, (summary, f"{chosen} (torch)")))
        versions = {version for each in found if (version := each.answer.get("version"))}
        if len(versions) > 1:
            summary = f"{len(versions)} versions: {summary}"
        version = next((each.answer.get("version") for each in found if each.copy.path == chosen), None)
        if wanted is NVRTC and _needs_newer_driver(version, readings.driver_cuda):
            return problem(
                f"{summary}. Opened: {chosen}, {why}; the driver supports CUDA up to {readings.driver_cuda} and may "
                f"refuse what NVRTC {version} compiles",
                f"Update the driver, or set {wanted.override} to an NVRTC of CUDA {readings.driver_cuda}.",
            )
        # Of a single copy it is plain which one a run opens.
        is_plain = [each.copy.path for each in found] == [chosen]
        opened = f", {why}" if is_plain else f". Opened: {chosen}, {why}"
        return ok(f"{summary}{opened}")
    broken = next((each for each in found if each.copy.found_by == wanted.override), None)
    if broken is not None:
        return problem(
            f"{wanted.override}={broken.copy.path} does not open: "
            f"{broken.answer.get('error', 'a run wants an absolute path')}",
            "A variable that is set is never passed over: correct it or unset it.",
            f"unset {wanted.override}",
        )
    what = f"{summary}: none of them opens" if found else "no copy found"
    advice, command = f"It {wanted.use}: install a copy.", f"pip install {wanted.package}"
    if readings.gpus:
        return problem(what, advice, command)
    return not_applicable(f"{what}, and there is no GPU to use it on")


def _chosen(found: Sequence[Opened], wanted: Library, opened_by_torch: Mapping[str, str]) -> tuple[str | None, str]:
    """The path that a run opens, and why; None where nothing opens."""
    override = next((each for each in found if each.copy.found_by == wanted.override), None)
    if override is not None:
        works = "error" not in override.answer and override.copy.path.startswith("/")
        return (override.copy.path, f"because {wanted.override} names it") if works else (None, "")
    if wanted.stem in opened_by_torch:
        return opened_by_torch[wanted.stem], "because importing torch has it in the process before"
    for each in found:
        if each.copy.found_by == "elsewhere" or "error" in each.answer:
            continue
        return each.copy.path, "the first that opens, wheels before what the system's loader finds"
    return None, ""


def _needs_newer_driver(built_for: str | None, driver_cuda: str | None) -> bool:
    """Whether that CUDA is of a later major version than the driver's: within one, older drivers run newer builds."""
    if not built_for or not driver_cuda:
        return False
    return int(built_for.partition(".")[0]) > int(driver_cuda.partition(".")[0])


def _described(each: Opened, chosen: str | None) -> str:
    said = each.answer.get("version") or f"does not open ({each.answer.get('error')})"
    unused = ", where nothing looks" if each.copy.found_by == "elsewhere" and each.copy.path != chosen else ""
    return f"{said} {each.copy.path} ({each.copy.found_by}{unused})"


def torch(readings: SoftwareReadings) -> Check:
    """Whether torch imports, and whether it computes on every GPU."""
    found = readings.torch
    if found is None:
        return problem(
            "not installed: operands, references and library baselines are torch's",
            "Install it.",
            "pip install 'pyperf_suite[torch]'",
        )
    if "error" in found:
        return problem(
            f"does not import: {found['error']}",
            "See what it says by itself, then reinstall it.",
            f"{sys.executable} -c 'import torch'",
        )
    build = f"for CUDA {found['cuda']}" if found.get("cuda") else "for CPUs alone"
    summary = f"{found['version']}, built {build}, {found['threads']} threads"
    if not readings.gpus:
        return ok(summary)
    if not found.get("cuda"):
        return problem(
            f"{summary}, but there is a GPU",
            "Install a build for CUDA, no newer than what the driver supports.",
            "pip install --force-reinstall torch",
        )
    if _needs_newer_driver(found["cuda"], readings.driver_cuda):
        return problem(
            f"{summary}, but the driver supports CUDA up to {readings.driver_cuda}: no kernel of torch runs",
            f"Update the driver, or install a build for CUDA {readings.driver_cuda}.",
            "nvidia-smi",
        )
    failed = [f"cuda:{number}: {said}" for number, said in enumerate(found.get("devices", [])) if said != "ok"]
    if failed or len(found.get("devices", [])) < readings.gpus:
        why = "; ".join(failed) or f"it sees {len(found.get('devices', []))} of {readings.gpus} GPUs"
        return problem(
            f"{summary}; its CUDA does not work: {why}",
            "Stop the process that fills the GPU, or choose another GPU (--device cuda:N)."
            if "out of memory" in why
            else "Fit torch's CUDA to the driver: a driver older than the build cannot run it.",
            f"{sys.executable} -c \"import torch; print(torch.ones(1, device='cuda'))\"",
        )
    return ok(f"{summary}; a sum on each GPU is right")


def gpu_memory(readings: SoftwareReadings) -> list[Check]:
    """What each GPU has free for a new process; NVML often lists no processes outside of its own container."""
    checks = []
    for number, (free, total) in enumerate((readings.torch or {}).get("memory", [])):
        found = f"{gib(free)} free of {gib(total)}"
        if free >= LEAST_FREE_SHARE * total:
            check = ok(found)
        else:
            check = problem(
                f"{found}: another process holds the rest, so large cases will be unsupported",
                "Stop it, wait until it is done, or choose another GPU (--device cuda:N).",
                "nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv",
            )
        checks.append(replace(check, name=f"cuda:{number} memory"))
    return checks


def triton(readings: SoftwareReadings) -> Check:
    """Triton's kernels are a second implementation on GPUs."""
    version = readings.packages.get("triton")
    if version:
        return ok(version)
    if not readings.gpus:
        return not_applicable("not installed, and there is no GPU to use it on")
    found = "not installed: cases of the Triton kernels will be unsupported"
    return warning(found, "Install it.", "pip install triton")


SOFTWARE_CHECKS: Mapping[str, Callable[[SoftwareReadings], Check]] = {
    "Python": python,
    PLUGIN: pytest_plugin,
    "C++ extension": extension,
    "C++ compiler": compiler,
    "CUDA toolkits": cuda_toolkits,
    NVRTC.name: partial(library, wanted=NVRTC),
    NCCL.name: partial(library, wanted=NCCL),
    "torch": torch,
}


def software_checks(readings: SoftwareReadings) -> list[Check]:
    """Every check of the software."""
    return [*examined(SOFTWARE_CHECKS, readings), *gpu_memory(readings), *examined({"triton": triton}, readings)]
