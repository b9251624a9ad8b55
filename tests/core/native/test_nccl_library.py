"""Finding libnccl, what a copy of it can do, and what each failure says; the library is a double."""

import ctypes
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

CSRC = Path(__file__).parents[3] / "csrc" / "nccl"
SETTINGS = {
    name: int(version) for name, version in re.findall(r"X\((\w+), (\d{5})\)", (CSRC / "nccl_api.h").read_text())
}
OF_MEMORY = ("ncclMemAlloc", "ncclMemFree", "ncclCommRegister", "ncclCommDeregister")
OF_WINDOWS = ("ncclCommWindowRegister", "ncclCommWindowDeregister")
OF_LATER = ("ncclCommInitRankScalable", "ncclAlltoAll", "ncclGather", "ncclScatter")
EVERY = {"ncclCommSplit", *OF_MEMORY, *OF_WINDOWS, *OF_LATER}


def test_the_version_and_path_of_the_copy_in_use_are_known_and_candidates_come_before_the_system(
    nccl, fake_libnccl, monkeypatch
):
    library = nccl.Library()
    assert (library.version, library.version_text) == (23203, "2.32.3")
    assert library.path == str(fake_libnccl())
    monkeypatch.delenv("PYPERF_LIBNCCL")
    library = nccl.Library(["/nowhere/libnccl.so.2", str(fake_libnccl())])
    assert library.path == str(fake_libnccl())


@pytest.mark.parametrize(
    ("version", "there"),
    [
        (21400, set()),
        (21800, {"ncclCommSplit"}),
        (22200, {"ncclCommSplit", *OF_MEMORY}),
        (22703, {"ncclCommSplit", *OF_MEMORY, "ncclCommInitRankScalable", *OF_WINDOWS}),
        (23004, EVERY),
        (23203, EVERY),
    ],
)
def test_later_symbols_are_optional_and_each_says_whether_it_is_there(nccl, fake_libnccl, monkeypatch, version, there):
    monkeypatch.setenv("PYPERF_LIBNCCL", str(fake_libnccl(version)))
    optional = nccl.Library().optional
    assert {name for name, present in optional.items() if present} == there
    assert set(optional) == EVERY


@pytest.mark.parametrize(
    ("copy", "words"),
    [
        ((2804,), r"is NCCL 2\.8\.4 and 2\.14\.0 or later is needed.*: update it"),
        ((21304,), r"is NCCL 2\.13\.4 and 2\.14\.0 or later is needed.*: update it"),
        ((23203, "-DFAKE_WITHOUT_SEND"), "has no ncclSend: it is too old or not what its name says"),
        ("/nowhere/libnccl.so.2", r"PYPERF_LIBNCCL=/nowhere/libnccl.so.2 cannot be opened \(.*\): correct it or unset"),
        ("libnccl.so.2", "PYPERF_LIBNCCL=libnccl.so.2 is no absolute path"),
        (np._core._multiarray_umath.__file__, "has no ncclGetVersion"),
    ],
)
def test_a_copy_that_does_not_serve_is_not_passed_over(native, nccl, fake_libnccl, monkeypatch, copy, words):
    monkeypatch.setenv("PYPERF_LIBNCCL", copy if isinstance(copy, str) else str(fake_libnccl(*copy)))
    with pytest.raises(native.cuda.NotAvailable, match=words):
        nccl.Library()


@pytest.mark.parametrize("version", [21400, 21800, 22200, 22703, 23004, 23203])
def test_each_setting_reaches_a_library_that_has_it_and_an_older_one_is_named(nccl, fake_libnccl, monkeypatch, version):
    monkeypatch.setenv("PYPERF_LIBNCCL", str(fake_libnccl(version)))
    assert nccl.SETTINGS == SETTINGS
    library, word_at = nccl.Library(), ctypes.CDLL(str(fake_libnccl(version))).fake_config
    available = [name for name, since in SETTINGS.items() if since <= version]
    for number, name in enumerate(available[1:], 2):
        settings = {"blocking": 1, name: number}
        nccl.Communicator(library, nccl.HostDevice(), library.unique_id(), 0, 1, 20, settings).finalize(20)
        # The field's place, in integers from `blocking` on; a pointer before it is two.
        words = [word_at(at) for at in range(26)]
        assert (words[0], words.count(number)) == (1, 1), name
    for name in SETTINGS.keys() - available:
        with pytest.raises(
            nccl.NotAvailable, match=rf"NCCL {library.version_text} has no setting {name}, 2\.\d+\.\d or"
        ):
            library.check_settings({name: 1})
    with pytest.raises(ValueError, match="NCCL's setting 'ctaPolicy' is unknown: choose blocking, cgaClusterSize"):
        library.check_settings({"ctaPolicy": 1})


def as_header(declarations: str) -> str:
    """NVIDIA's declarations for Cython as C++ has them: enumerations, two structures, the functions that we name."""
    ours = (CSRC / "nccl_api.h").read_text()
    text = "#pragma once\n#include <cuda_runtime.h>\ntypedef struct ncclComm* ncclComm_t;\n"
    text += "typedef struct ncclWindow* ncclWindow_t;\n"
    for name, body in re.findall(r'ctypedef enum (\w+) "\w+":\n((?:    .*\n)+)', declarations):
        members = (re.sub(r'(\w+) "\w+"', r"\1", line) for line in body.splitlines())
        text += f"enum {name} {{\n{','.join(members)} }};\n"
    for name, body in re.findall(r"ctypedef struct (\w+) '\w+':\n((?:    .*\n)+)", declarations):
        if name in ("ncclUniqueId", "ncclConfig_t"):
            text += f"struct {name} {{ {body.replace(chr(10), ';')} }};\n"
    for prototype, name in re.findall(r"^cdef ([\w* ]+?\b(nccl\w+)\([^)]*\))", declarations, re.MULTILINE):
        text += f"{prototype};\n" if f"X({name}," in ours else ""
    return text


@pytest.fixture
def nccl_header(tmp_path: Path, wheel: Callable[[str, str], Path]) -> Path:
    """The folder of NVIDIA's nccl.h, or of one made of what its Python bindings declare, a fraction of the size."""
    # nccl.h asks the CUDA toolkit for the types of streams and events and little else.
    types = "typedef struct CUstream_st* cudaStream_t;\ntypedef struct CUevent_st* cudaEvent_t;\n"
    (tmp_path / "cuda_runtime.h").write_text(f"#pragma once\n#include <stddef.h>\n{types}")
    (tmp_path / "cuda_fp16.h").touch()
    # As operations.cpp names them: bfloat16 is ncclBfloat16, float8_e4m3 is ncclFloat8e4m3, sum is ncclSum.
    rows = re.findall(r'\{"(\w+)", (\d+)(?:, \d+, \d+)?\}', (CSRC / "operations.cpp").read_text())
    assert len(rows) == 17
    checks = [f"CHECK_NAMED({number}, nccl{name.capitalize().replace('_', '')})\n" for name, number in rows]
    header = next((path for folder in sys.path for path in Path(folder).glob("nvidia/nccl/include/nccl.h")), None)
    if header is None:
        header = tmp_path / "nccl.h"
        header.write_text(as_header((wheel("nccl4py", "nccl/bindings") / "cynccl.pxd").read_text()))
    # An older one has fewer.
    there = [name for name in SETTINGS if re.search(rf"\bint {name};", header.read_text())]
    checks += [f"CHECK_MEMBER(ncclConfig_t, {name}, {name});\n" for name in there]
    (tmp_path / "numbers.h").write_text("".join(checks))
    return header.parent


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("", ""),
        ("remote_error = 6", "remote_error = 9"),
        ("    int minCTAs = undefined_integer;\n", ""),
        (
            "    int numRmaSig = undefined_integer;\n    int rmaEagerInit",
            "    int rmaEagerInit = 0;\n    int numRmaSig",
        ),
        ("char internal[128]", "char internal[64]"),
        ("ncclResult_t(ncclComm_t, int* rank)", "ncclResult_t(ncclComm_t, std::size_t* rank)"),
        ("ncclResult_t(ncclRedOp_t, ncclComm_t)", "ncclResult_t(ncclComm_t, ncclRedOp_t)"),
    ],
    ids=[
        "as it is",
        "an enumerator",
        "a member that is missing",
        "members in another order",
        "a size",
        "what is written to",
        "an order",
    ],
)
def test_our_declarations_of_nccl_agree_with_its_own_and_a_mistake_is_seen(nccl_header, disagreements, right, wrong):
    mistakes = {right: wrong} if right else {}
    said = disagreements("nccl_api_check.cpp", "nccl/nccl_api.h", nccl_header, mistakes=mistakes)
    assert ("static assertion failed" in said or "has no member" in said) if right else not said
