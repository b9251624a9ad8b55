"""The compiler, CUDA's libraries, torch and triton: which copies there are, which is opened, and whether they work."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.hardware import software
from pyperf_suite.hardware.kernel_files import KernelFiles
from pyperf_suite.hardware.software import Copy
from pyperf_suite.kernels import nvrtc
from pyperf_suite.node.check import Check, caution, failed, named, of_part, ok, size_text, unknown
from pyperf_suite.node.doctor.children import ExaminedProcess
from pyperf_suite.workloads.backends import native_extension
from pyperf_suite.workloads.collective import nccl

OLDEST_PYTHON = (3, 10)
PLUGIN = "pytest-benchmark"
LEAST_FREE_SHARE = 0.8  # of a GPU's memory: torch's own context takes less than a GiB


@dataclass(frozen=True)
class Library:
    """A library that is opened at run time, what it is for, and the function that returns its version."""

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


def software_checks(files: KernelFiles, gpus: int, driver_cuda: str | None) -> list[Check]:
    """Every check of the software, and the memory of each GPU that torch reports.

    torch and each library are opened in processes of their own, in parallel. `driver_cuda` is the newest CUDA that the
    driver supports, as in 13.0.
    """
    importing = ExaminedProcess("torch", "yes" if gpus else "no") if software.installed_version("torch") else None
    waiting = {
        wanted: [
            (copy, ExaminedProcess("library", copy.path, wanted.version_function))
            for copy in software.copies(files, wanted.sonames, wanted.override, wheels, os.environ)
        ]
        for wanted, wheels in ((NVRTC, list(nvrtc.wheels())), (NCCL, list(nvrtc.wheels(nccl.WHEEL_PATTERNS))))
    }
    opened = {name: [Opened(copy, child.answer()) for copy, child in found] for name, found in waiting.items()}
    imported = importing.answer() if importing else None
    in_process = (imported or {}).get("opened", {})
    why_no_extension = None
    try:
        native_extension()
    except UserError as error:
        why_no_extension = str(error)
    checks = {
        "Python": python(sys.version_info[:3]),
        PLUGIN: pytest_plugin({name: software.installed_version(name) for name in ("pytest", PLUGIN)}),
        "C++ extension": extension(why_no_extension),
        "C++ compiler": compiler(software.compiler(os.environ)),
        **{each.name: library(each, found, in_process, gpus, driver_cuda) for each, found in opened.items()},
        "torch": torch(imported, gpus, driver_cuda),
        "triton": triton(software.installed_version("triton"), gpus),
    }
    free = (imported or {}).get("memory", [])
    of_gpus = [named(gpu_memory(*each), f"cuda:{number}", "memory") for number, each in enumerate(free)]
    return [*of_part("Software", checks), *of_gpus]


def python(numbers: tuple[int, ...]) -> Check:
    """The interpreter."""
    version = ".".join(map(str, numbers))
    if numbers[:2] >= OLDEST_PYTHON:
        return ok(f"{platform.python_implementation()} {version}")
    oldest = ".".join(map(str, OLDEST_PYTHON))
    return failed(version, f"Use Python {oldest} or newer.")


def pytest_plugin(versions: Mapping[str, str | None]) -> Check:
    """Check the needs of `pytest --benchmark-only`, by the versions that are installed."""
    missing = [name for name, version in versions.items() if version is None]
    if not missing:
        return ok(", ".join(f"{name} {version}" for name, version in versions.items()))
    found = f"{' and '.join(missing)} not installed: `pytest --benchmark-only` does not run"
    return failed(found, "Install what is missing.", f"pip install {' '.join(missing)}")


def extension(reason: str | None) -> Check:
    """The package's own C++, and why it does not load."""
    if reason is None:
        return ok("loads")
    return failed(reason, "Build it in the checkout.", "pip install -e .")


def compiler(cxx: software.Compiler | None) -> Check:
    """The C++ compiler, which an install and torch.compile on the CPU need."""
    command = "sudo apt install g++   # or clang++; or set CXX to a compiler's path"
    if cxx is None:
        return caution("none on the PATH: the extension cannot be built", "Get one.", command)
    if cxx.version is None:
        said = f"CXX={cxx.command}" if cxx.requested else cxx.command
        return caution(f"{said} cannot be run", "Correct or unset CXX.", command)
    return ok(f"{cxx.command}: {cxx.version}")


def library(
    wanted: Library, copies: Sequence[Opened], in_process: Mapping[str, str], gpus: int, driver_cuda: str | None
) -> Check:
    """All copies of a library, which of them a run opens, and why; `in_process` are those that torch opened."""
    chosen, why = _chosen(copies, wanted, in_process)
    summary = "; ".join(_described(each, chosen) for each in copies)
    if chosen is not None:
        if all(each.copy.path != chosen for each in copies):
            summary = "; ".join(filter(None, (summary, f"{chosen} (torch)")))
        versions = {version for each in copies if (version := each.answer.get("version"))}
        if len(versions) > 1:
            summary = f"{len(versions)} versions: {summary}"
        version = next((each.answer.get("version") for each in copies if each.copy.path == chosen), None)
        if wanted is NVRTC and _needs_newer_driver(version, driver_cuda):
            return failed(
                f"{summary}. Opened: {chosen}, {why}; the driver supports CUDA up to {driver_cuda} and may "
                f"refuse what NVRTC {version} compiles",
                f"Update the driver, or set {wanted.override} to an NVRTC of CUDA {driver_cuda}.",
            )
        # A single copy leaves no doubt which one a run opens.
        is_plain = [each.copy.path for each in copies] == [chosen]
        opened = f", {why}" if is_plain else f". Opened: {chosen}, {why}"
        return ok(f"{summary}{opened}")
    broken = next((each for each in copies if each.copy.found_by == wanted.override), None)
    if broken is not None:
        return failed(
            f"{wanted.override}={broken.copy.path} does not open: "
            f"{broken.answer.get('error', 'a run wants an absolute path')}",
            "A variable that is set is never passed over: correct it or unset it.",
            f"unset {wanted.override}",
        )
    what = f"{summary}: none of them opens" if copies else "no copy found"
    advice, command = f"It {wanted.use}: install a copy.", f"pip install {wanted.package}"
    if gpus:
        return failed(what, advice, command)
    return unknown(f"{what}, and there is no GPU to use it on")


def _chosen(copies: Sequence[Opened], wanted: Library, opened_by_torch: Mapping[str, str]) -> tuple[str | None, str]:
    """The path that a run opens, and why; None where nothing opens."""
    override = next((each for each in copies if each.copy.found_by == wanted.override), None)
    if override is not None:
        works = "error" not in override.answer and override.copy.path.startswith("/")
        return (override.copy.path, f"because {wanted.override} names it") if works else (None, "")
    if wanted.stem in opened_by_torch:
        return opened_by_torch[wanted.stem], "because importing torch has it in the process before"
    for each in copies:
        if each.copy.found_by == "elsewhere" or "error" in each.answer:
            continue
        return each.copy.path, "the first that opens, wheels before what the system's loader finds"
    return None, ""


def _needs_newer_driver(built_for: str | None, driver_cuda: str | None) -> bool:
    """True if that CUDA is of a later major version than the driver's: within one, older drivers run newer builds."""
    if not built_for or not driver_cuda:
        return False
    return int(built_for.partition(".")[0]) > int(driver_cuda.partition(".")[0])


def _described(copy: Opened, chosen: str | None) -> str:
    said = copy.answer.get("version") or f"does not open ({copy.answer.get('error')})"
    unused = ", where nothing looks" if copy.copy.found_by == "elsewhere" and copy.copy.path != chosen else ""
    return f"{said} {copy.copy.path} ({copy.copy.found_by}{unused})"


def torch(report: Mapping[str, Any] | None, gpus: int, driver_cuda: str | None) -> Check:
    """Check that torch imports, and that it computes on every GPU; None if it is not installed."""
    if report is None:
        return failed(
            "not installed: operands, references and library baselines are torch's",
            "Install it.",
            "pip install 'pyperf_suite[torch]'",
        )
    if "error" in report:
        return failed(
            f"does not import: {report['error']}",
            "See what it says by itself, then reinstall it.",
            f"{sys.executable} -c 'import torch'",
        )
    build = f"for CUDA {report['cuda']}" if report.get("cuda") else "for CPUs alone"
    summary = f"{report['version']}, built {build}, {report['threads']} threads"
    if not gpus:
        return ok(summary)
    if not report.get("cuda"):
        return failed(
            f"{summary}, but there is a GPU",
            "Install a build for CUDA, no newer than what the driver supports.",
            "pip install --force-reinstall torch",
        )
    if _needs_newer_driver(report["cuda"], driver_cuda):
        return failed(
            f"{summary}, but the driver supports CUDA up to {driver_cuda}: no kernel of torch runs",
            f"Update the driver, or install a build for CUDA {driver_cuda}.",
            "nvidia-smi",
        )
    wrong = [f"cuda:{number}: {said}" for number, said in enumerate(report.get("devices", [])) if said != "ok"]
    if wrong or len(report.get("devices", [])) < gpus:
        why = "; ".join(wrong) or f"it sees {len(report.get('devices', []))} of {gpus} GPUs"
        return failed(
            f"{summary}; its CUDA does not work: {why}",
            "Stop the process that fills the GPU, or choose another GPU (--device cuda:N)."
            if "out of memory" in why
            else "Fit torch's CUDA to the driver: a driver older than the build cannot run it.",
            f"{sys.executable} -c \"import torch; print(torch.ones(1, device='cuda'))\"",
        )
    return ok(f"{summary}; a sum on each GPU is right")


def gpu_memory(free_bytes: int, total_bytes: int) -> Check:
    """Check a GPU's free memory for a new process; NVML often lists no processes outside of its own container."""
    found = f"{size_text(free_bytes)} free of {size_text(total_bytes)}"
    if free_bytes >= LEAST_FREE_SHARE * total_bytes:
        return ok(found)
    return failed(
        f"{found}: another process holds the rest, so large cases will be unsupported",
        "Stop it, wait until it is done, or choose another GPU (--device cuda:N).",
        "nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv",
    )


def triton(version: str | None, gpus: int) -> Check:
    """Triton's kernels are a second implementation on GPUs."""
    if version:
        return ok(version)
    if not gpus:
        return unknown("not installed, and there is no GPU to use it on")
    found = "not installed: cases of the Triton kernels will be unsupported"
    return caution(found, "Install it.", "pip install triton")
