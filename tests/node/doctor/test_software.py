"""Compilers, libraries and torch: every copy told, the one that would be opened, and breakage as a finding."""

from __future__ import annotations

import sys

import pytest

from pyperf_suite.hardware.software import Compiler, Copy, Toolkit
from pyperf_suite.node.doctor.children import ANSWER, ExaminedProcess, nccl_version
from pyperf_suite.node.doctor.software import NCCL, NVRTC, Opened, software_checks

WHEEL = Opened(Copy("/env/nvidia/nccl/lib/libnccl.so.2", "wheel"), {"version": "2.27.5"})
SYSTEM = Opened(Copy("/usr/lib/libnccl.so.2", "loader"), {"version": "2.18.3"})
STRAY = Opened(Copy("/opt/conda/lib/libnccl.so.2", "elsewhere"), {"version": "2.21.5"})
BROKEN = {"error": "OSError: file too short"}
GPU_TORCH = {"version": "2.13.0", "cuda": "13.0", "threads": 8, "opened": {}, "devices": ["ok"]}


def named(readings):
    return {check.what: check for check in software_checks(readings)}


def test_a_machine_without_gpu_where_all_is_installed_is_fine(software):
    assert {check.verdict for check in named(software()).values()} == {"ok", "unknown"}


def test_all_copies_are_told_and_the_wheel_comes_before_the_loaders(software):
    check = named(software(copies={"NCCL": (WHEEL, SYSTEM, STRAY)}))["NCCL"]
    assert check.verdict == "ok"
    assert "2.27.5 /env/nvidia/nccl/lib/libnccl.so.2 (wheel)" in check.found
    assert "2.18.3 /usr/lib/libnccl.so.2 (loader)" in check.found
    assert "(elsewhere, where nothing looks)" in check.found
    assert "Opened: /env/nvidia/nccl/lib/libnccl.so.2, the first that opens" in check.found


def test_a_copy_that_does_not_open_is_passed_over_and_told(software):
    broken = Opened(WHEEL.copy, BROKEN)
    check = named(software(copies={"NCCL": (broken, SYSTEM)}))["NCCL"]
    assert "does not open (OSError: file too short)" in check.found
    assert "Opened: /usr/lib/libnccl.so.2" in check.found


def test_the_copy_that_torch_has_in_the_process_comes_before_the_wheels(software):
    torch = GPU_TORCH | {"opened": {"libnccl": "/env/torch/lib/libnccl.so.2"}}
    check = named(software(copies={"NCCL": (WHEEL,)}, torch=torch, gpus=1))["NCCL"]
    assert "Opened: /env/torch/lib/libnccl.so.2, because importing torch" in check.found


def test_a_variable_that_names_a_copy_is_never_passed_over(software):
    requested = Opened(Copy("/mine/libnccl.so.2", NCCL.override), {"version": "2.30.1"})
    found = named(software(copies={"NCCL": (requested, WHEEL)}))["NCCL"].found
    assert "Opened: /mine/libnccl.so.2, because PYPERF_LIBNCCL names it" in found
    check = named(software(copies={"NCCL": (Opened(requested.copy, BROKEN), WHEEL)}))["NCCL"]
    assert check.verdict == "failed"
    assert check.command == "unset PYPERF_LIBNCCL"


def test_a_variable_that_names_a_relative_path_is_a_problem_though_it_opens(software):
    requested = Opened(Copy("libnccl.so.2", NCCL.override), {"version": "2.30.1"})
    check = named(software(copies={"NCCL": (requested, WHEEL)}))["NCCL"]
    assert (check.verdict, "absolute path" in check.found) == ("failed", True)


def test_a_library_that_is_missing_is_a_problem_only_where_there_is_a_gpu(software):
    assert named(software())[NVRTC.name].verdict == "unknown"
    check = named(software(gpus=1))[NVRTC.name]
    assert (check.verdict, check.command) == ("failed", "pip install nvidia-cuda-nvrtc")


@pytest.mark.parametrize(
    ("torch", "gpus", "verdict", "words"),
    [
        (None, 0, "failed", "not installed"),
        ({"error": "ended by signal 11: nothing was said"}, 0, "failed", "does not import: ended by signal 11"),
        (GPU_TORCH, 1, "ok", "a sum on each GPU is right"),
        (GPU_TORCH | {"devices": []}, 1, "failed", "it sees 0 of 1 GPUs"),
        (GPU_TORCH | {"devices": ["no kernel image"]}, 1, "failed", "cuda:0: no kernel image"),
        (GPU_TORCH | {"cuda": None}, 1, "failed", "but there is a GPU"),
    ],
)
def test_torch_is_judged_by_what_it_did(software, torch, gpus, verdict, words):
    check = named(software(torch=torch, gpus=gpus))["torch"]
    assert (check.verdict, words in f"{check.found} {check.why}") == (verdict, True), check


@pytest.mark.parametrize(
    ("name", "field", "verdict"),
    [
        ("Python", {"python": (3, 9, 1)}, "failed"),
        ("pytest-benchmark", {"packages": {"pytest": "9.2.0"}}, "failed"),
        ("C++ extension", {"extension": "The native extension does not load"}, "failed"),
        ("C++ compiler", {"compiler": None}, "caution"),
        ("C++ compiler", {"compiler": Compiler("icpx", None, requested=True)}, "caution"),
        ("CUDA toolkits", {"toolkits": (Toolkit("/usr/local/cuda", "12.8"),)}, "ok"),
        ("triton", {"packages": {}, "gpus": 1}, "caution"),
    ],
)
def test_what_is_missing_or_old_is_told(software, name, field, verdict):
    assert named(software(**field))[name].verdict == verdict


NVRTC_13 = Opened(Copy("/env/nvidia/cu13/lib/libnvrtc.so.13", "wheel"), {"version": "13.0"})
NVRTC_12 = Opened(Copy("/usr/lib/libnvrtc.so.12", "loader"), {"version": "12.8"})


def on_a_gpu(software, **otherwise):
    usual = {"gpus": 1, "driver_cuda": "13.0", "torch": GPU_TORCH, "copies": {"NVRTC": (NVRTC_13,)}}
    return named(software(**(usual | otherwise)))


def test_a_driver_too_old_for_torch_or_nvrtc_is_a_problem_with_both_versions(software):
    assert {on_a_gpu(software)[name].verdict for name in ("torch", "NVRTC")} == {"ok"}
    # CUDA's minor versions are compatible (CUDA Compatibility guide), so 13.0 on a driver for 13.2 and back is fine.
    assert on_a_gpu(software, torch=GPU_TORCH | {"cuda": "13.2"})["torch"].verdict == "ok"
    old = on_a_gpu(software, driver_cuda="12.4")
    for name, built in (("torch", "13.0"), ("NVRTC", "13.0")):
        assert old[name].verdict == "failed"
        assert built in old[name].found
        assert "up to 12.4" in old[name].found


def test_two_nvrtcs_are_told_with_the_one_that_is_opened(software):
    check = on_a_gpu(software, copies={"NVRTC": (NVRTC_13, NVRTC_12)})["NVRTC"]
    assert (check.verdict, check.found.startswith("2 versions: 13.0 ")) == ("ok", True)
    assert "Opened: /env/nvidia/cu13/lib/libnvrtc.so.13" in check.found
    assert not on_a_gpu(software)["NVRTC"].found.startswith("1 version")


def test_a_gpu_that_another_process_fills_is_a_problem_though_nvml_lists_none(software):
    idle = on_a_gpu(software, torch=GPU_TORCH | {"memory": [[79 * 2**30, 80 * 2**30]]})["memory"]
    assert idle.verdict == "ok"
    full = on_a_gpu(software, torch=GPU_TORCH | {"memory": [[2 * 2**30, 80 * 2**30]]})["memory"]
    assert (full.verdict, full.found.startswith("2 GiB free of 80 GiB")) == ("failed", True)
    no_room = GPU_TORCH | {"devices": ["OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB"]}
    check = on_a_gpu(software, torch=no_room)["torch"]
    assert (check.verdict, "fills the GPU" in check.advice) == ("failed", True)


def child(program: str) -> ExaminedProcess:
    return ExaminedProcess("anything", command=(sys.executable, "-c", program))


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "ended by signal 9"),
        ("import absent_package", "ended with code 1: ModuleNotFoundError"),
        ("print('something else')", "ended with code 0"),
        (f"print({ANSWER!r} + '[torn')", "ended with code 0"),
    ],
)
def test_a_child_that_crashes_or_babbles_is_a_finding(program, words):
    assert words in child(program).answer()["error"]


def test_a_child_that_hangs_is_given_up():
    assert child("import time; time.sleep(60)").answer(deadline_s=0.5) == {"error": "no answer within 0.5 s"}


def test_a_child_that_cannot_be_started_is_a_finding():
    assert "nowhere" in ExaminedProcess("anything", command=("/nowhere/python",)).answer()["error"]


def test_opening_what_is_no_library_is_answered_in_one_line(tmp_path):
    (tmp_path / "libnccl.so.2").write_bytes(b"\x7fELF")
    message = ExaminedProcess("library", str(tmp_path / "libnccl.so.2"), "ncclGetVersion").answer()
    assert message["error"].startswith("OSError: ")


def test_both_of_nccls_ways_to_number_versions_are_read():
    assert [nccl_version(number) for number in (22705, 2804, 21803)] == ["2.27.5", "2.8.4", "2.18.3"]
