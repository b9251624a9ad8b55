"""Copies of libraries and compilers that a machine has."""

from __future__ import annotations

import sys

from pyperf_suite.hardware.software import compiler, copies, loader_folders, mapped


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


def test_one_file_by_two_names_is_one_copy(machine, tmp_path):
    files = machine({"usr/lib/libnccl.so.2": ""})
    (tmp_path / "lib").symlink_to("usr/lib")
    assert len(copies(files, ["libnccl.so.2"], "PYPERF_LIBNCCL", [], {})) == 1


def test_a_loaders_configuration_that_includes_itself_ends(machine):
    assert loader_folders(machine({"etc/ld.so.conf": "include ld.so.conf\n/mine\n"})) == ("/mine",)


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
