"""Finding libnccl, what a copy of it can do, and what each failure says; the library is a double."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

CSRC = Path(__file__).parents[3] / "csrc" / "nccl"


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
        (21903, {"ncclCommSplit", "ncclMemAlloc", "ncclMemFree", "ncclCommRegister", "ncclCommDeregister"}),
    ],
)
def test_later_symbols_are_optional_and_each_says_whether_it_is_there(nccl, fake_libnccl, monkeypatch, version, there):
    monkeypatch.setenv("PYPERF_LIBNCCL", str(fake_libnccl(version)))
    optional = nccl.Library().optional
    assert {name for name, present in optional.items() if present} == there
    assert {"ncclAlltoAll", "ncclGather", "ncclScatter"} < set(optional)


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


def test_each_unique_id_has_128_bytes_of_its_own(nccl):
    library = nccl.Library()
    ids = {library.unique_id() for _ in range(10)}
    assert len(ids) == 10
    assert {len(each) for each in ids} == {128}


def as_header(declarations: str) -> str:
    """NVIDIA's declarations for Cython as C++ has them: enumerations, two structures, the functions that we name."""
    ours = (CSRC / "nccl_api.h").read_text()
    text = "#pragma once\n#include <cuda_runtime.h>\ntypedef struct ncclComm* ncclComm_t;\n"
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
    checks = (f"CHECK_NAMED({number}, nccl{name.capitalize().replace('_', '')})\n" for name, number in rows)
    (tmp_path / "numbers.h").write_text("".join(checks))
    header = next((path for folder in sys.path for path in Path(folder).glob("nvidia/nccl/include/nccl.h")), None)
    if header is not None:
        return header.parent
    (tmp_path / "nccl.h").write_text(as_header((wheel("nccl4py", "nccl/bindings") / "cynccl.pxd").read_text()))
    return tmp_path


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("", ""),
        ("remote_error = 6", "remote_error = 9"),
        ("    int min_ctas = undefined_integer;\n", ""),
        ("char internal[128]", "char internal[64]"),
        ("ncclResult_t(ncclComm_t, int* rank)", "ncclResult_t(ncclComm_t, std::size_t* rank)"),
        ("ncclResult_t(ncclRedOp_t, ncclComm_t)", "ncclResult_t(ncclComm_t, ncclRedOp_t)"),
    ],
    ids=["as it is", "an enumerator", "a member that is missing", "a size", "what is written to", "an order"],
)
def test_our_declarations_of_nccl_agree_with_its_own_and_a_mistake_is_seen(nccl_header, disagreements, right, wrong):
    mistakes = {right: wrong} if right else {}
    said = disagreements("nccl_api_check.cpp", "nccl/nccl_api.h", nccl_header, mistakes=mistakes)
    assert ("static assertion failed" in said or "has no member" in said) if right else not said
