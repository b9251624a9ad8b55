import json
import platform
import re
import socket
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.hardware import machine as module
from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.hardware.devices import CudaDriver, Device, Unavailable, gpus, resolve
from pyperf_suite.hardware.machine import identity, source_of, state
from pyperf_suite.hardware.nvml import Nvml
from pyperf_suite.hardware.software import compiler, copies, mapped
from tests.core.repository import Repository


@given(st.text(max_size=80) | st.text("a-", min_size=90), st.integers(1, 4096))
def test_every_model_makes_a_folders_name_that_keeps_its_cores(model, cores):
    made = module.slug("cpu", model, f"{cores}c")
    assert re.fullmatch(r"cpu-([a-z0-9.-]*[a-z0-9]-)?[0-9]+c", made)
    assert made.endswith(f"-{cores}c")
    assert len(made) <= module.LONGEST_SLUG


@pytest.mark.parametrize(
    ("name", "count", "links", "slug", "changed"),
    [
        ("NVIDIA H200", 1, 18, "", {}),
        ("NVIDIA H200", 8, 18, "-x8-nvlink4x18", {"count": 8, "link": "nvlink4x18"}),
        ("NVIDIA H200", 8, 0, "-x8-pcie", {"count": 8, "link": "pcie"}),
        ("NVIDIA H200", 8, None, "-x8-unknown", {"count": 8, "link": "unknown"}),
        ("NVIDIA H200 MIG 1g.18gb", 1, 18, "-1g.18gb", {"mig_profile": "1g.18gb"}),
    ],
)
def test_gpus_are_another_machine_by_their_number_link_and_slice(
    fake_cuda, fake_nvml, name, count, links, slug, changed
):
    driver = CudaDriver(fake_cuda([name] * count))
    manager = Unavailable("no NVML") if links is None else Nvml(fake_nvml(links))
    found = module.gpu_identity([driver.gpu(index) for index in range(count)], 0, manager)
    assert found.slug == f"cuda-nvidia-h200-132sm-140gib{slug}"
    alone = {"model": "NVIDIA H200", "multiprocessors": 132, "memory_gib": 140, "mig_profile": None}
    assert found.fields == alone | {"count": 1, "link": "none"} | changed


def test_state_is_plain_json_with_versions_and_names_neither_the_host_nor_anyones_folder():
    found = module.state(Device("cpu"))
    assert json.loads(json.dumps(found)) == found
    assert found["python"].endswith(platform.python_version())
    assert found["packages"]["numpy"]
    assert found["kernel"].startswith(platform.system())
    text = json.dumps(module.state(Device("cpu")))
    assert str(Path.home()) not in text.split('"')
    assert socket.gethostname() not in text.split('"')


def test_what_the_kernel_has_no_file_for_is_none(machine):
    found = module.kernel_state(machine({}), frozenset())
    assert found["governors"] == []
    unknown = {name for name, value in found.items() if value is None}
    assert unknown == {"turbo", "smt", "transparent_hugepages", "cpu_quota_cores", "hypervisor", "container"}
    amd = machine({"sys/devices/system/cpu/cpufreq/boost": "1"})
    assert module.kernel_state(amd, frozenset())["turbo"] is True


@pytest.mark.parametrize(
    ("has_nvml", "settings"),
    [
        (True, {"cuda": "13.1", "driver": "580.82.07", "power_limit_w": 700.0, "unavailable": None}),
        (False, {"cuda": "13.1", "unavailable": "libnvidia-ml.so.1 cannot be opened"}),
    ],
)
def test_a_gpus_state_has_its_unit_driver_and_settings_and_without_nvml_what_is_left(
    monkeypatch, fake_cuda, fake_nvml, has_nvml, settings
):
    manager = Nvml(fake_nvml()) if has_nvml else Unavailable("libnvidia-ml.so.1 cannot be opened")
    monkeypatch.setattr(module, "driver", lambda: CudaDriver(fake_cuda(["NVIDIA H200"])))
    monkeypatch.setattr(module, "nvml", lambda: manager)
    found = module.state(Device("cuda", 0))["gpu"]
    assert found["uuid"].startswith("GPU-")
    assert {name: found.get(name) for name in settings} == settings


@pytest.fixture
def repository(tmp_path):
    """A checkout of its own that holds one package, committed once."""
    made = Repository(tmp_path / "checkout")
    made.commit("begin", **{"package/__init__.py": ""})
    return made


@pytest.fixture
def package(repository):
    return repository.root / "package"


def test_a_checkout_names_its_commit_and_another_that_the_environment_points_to_is_ignored(
    repository, package, tmp_path, monkeypatch
):
    commit = repository.git("rev-parse", "HEAD")
    assert source_of(package) == {"commit": commit, "dirty": False}
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert source_of(package)["commit"] == commit


def test_a_git_that_hangs_is_not_waited_for(package, tmp_path, monkeypatch):
    fake = tmp_path / "git"
    fake.write_text("#!/bin/sh\nexec sleep 30\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(module, "GIT_DEADLINE_S", 0.1)
    assert source_of(package) == {}


@pytest.mark.gpu
def test_the_first_gpu_is_in_the_catalogue_and_as_the_driver_describes_it():
    first = gpus()[0]
    if first.name.startswith("Fake"):
        pytest.skip("the double of libcuda stands in for a GPU here")
    spec = find_gpu(first.name)
    assert spec.compute_capability == first.compute_capability
    assert spec.sms == first.multiprocessors
    assert first.memory_bytes < 1.01 * spec.memory_bytes


@pytest.mark.gpu
def test_a_run_on_the_gpu_has_identity_and_state_as_plain_json():
    device = resolve("cuda:0")
    assert device == Device("cuda", 0)
    assert identity(device).slug.startswith("cuda-")
    found = state(device)
    assert json.loads(json.dumps(found)) == found
    assert found["gpu"]["cuda"]


def test_copies_come_in_the_order_in_which_they_are_tried(machine):
    files = machine(
        {
            "etc/ld.so.conf": "include ld.so.conf.d/*.conf\n",
            "etc/ld.so.conf.d/cuda.conf": "# toolkit\n/usr/local/cuda/lib64\n",
            "mine/lib/libnccl.so.2": "",
            "usr/local/cuda/lib64/libnccl.so.2": "",
            "usr/lib/libnccl.so.2": "",
            "opt/conda/lib/libnccl.so.2": "",
        }
    )
    environment = {"PYPERF_LIBNCCL": "/asked/libnccl.so.2", "LD_LIBRARY_PATH": "/mine/lib:/nowhere"}
    found = copies(files, ["libnccl.so.2"], "PYPERF_LIBNCCL", ["/env/libnccl.so.2"], environment)
    assert [(copy.path, copy.found_by) for copy in found] == [
        ("/asked/libnccl.so.2", "PYPERF_LIBNCCL"),
        ("/env/libnccl.so.2", "wheel"),
        ("/mine/lib/libnccl.so.2", "loader"),
        ("/usr/local/cuda/lib64/libnccl.so.2", "loader"),
        ("/usr/lib/libnccl.so.2", "loader"),
        ("/opt/conda/lib/libnccl.so.2", "elsewhere"),
    ]


def test_the_copy_in_a_process_is_read_from_its_map_and_no_other_library_is_taken_for_it():
    maps = (
        "7f00-7f01 r-xp 00000000 08:01 12 /env/lib/libnvrtc-builtins.so.13.0\n"
        "7f02-7f03 r-xp 00000000 08:01 13 /env/lib/libnvrtc-0a1b2c.so.13\n"
    )
    assert mapped(maps, "libnvrtc") == "/env/lib/libnvrtc-0a1b2c.so.13"
    assert mapped(maps, "libnccl") is None


def test_the_compiler_is_what_cxx_names_even_where_it_cannot_be_run():
    assert compiler({"CXX": f"'{sys.executable}'", "PATH": ""}).version.startswith("Python ")
    assert compiler({"CXX": "nowhere-c++", "PATH": ""}).version is None
    assert compiler({"CXX": "'torn", "PATH": ""}).version is None
    assert compiler({"PATH": "/nowhere"}) is None
