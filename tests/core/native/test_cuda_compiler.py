"""The compiler and its cache, with the real NVRTC: no GPU is needed to compile for one."""

import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pyperf_suite.workloads.scratch import MAGIC, KernelCache

OPTIONS = ["--std=c++17"]
ADD_ONE = 'extern "C" __global__ void add_one(float* x) { x[threadIdx.x] += 1.0f; }'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "some" / "cache"


@pytest.fixture
def compiler(cuda, nvrtc, folder) -> Callable[[], Any]:
    """A compiler that remembers nothing but what the folder holds."""
    return lambda: KernelCache(cuda.Compiler([nvrtc]), str(folder))


def compiled(compiler: Any, source: str = ADD_ONE, **changes: Any) -> Any:
    arguments = {"name": "test.cu", "source": source, "headers": {}, "architecture": "sm_80", "options": OPTIONS}
    return compiler.compile(**(arguments | changes))


def entry(folder: Path) -> Path:
    [file] = folder.iterdir()
    return file


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize(
    ("file", "kernels"),
    [
        ("stopwatch.cu", ("hold_stream", "read_clocks")),
        ("periodic.cu", ("outside_1", "outside_2", "outside_4")),
    ],
)
def test_the_suites_small_kernels_compile_for_every_architecture_taken(compiler, file, kernels, architecture):
    source = (Path(__file__).parents[3] / "kernels" / "cuda" / file).read_text()
    result = compiled(compiler(), source, architecture=architecture)
    assert result.log == ""  # not even a warning
    assert all(f"pyperf_{kernel}".encode() in result.cubin for kernel in kernels)


EMULATED = r"""
#include <cstdio>
#include <cstdlib>
#include <vector>
#define __global__
#define __device__
struct Dim { unsigned x; };
static Dim gridDim{3}, blockDim{32}, blockIdx, threadIdx;
static void atomicAdd(unsigned long long* at, unsigned long long value) { *at += value; }
static void atomicMin(unsigned long long* at, unsigned long long value) { if (value < *at) *at = value; }
#include "periodic.cu"

template <typename Bits, typename Kernel> void run(Kernel kernel, const char* name) {
    for (unsigned period : {1u, 7u, 100u})
        for (unsigned count : {1u, 95u, 96u, 1000u}) {
            std::vector<Bits> low(period), high(period), data(count);
            for (unsigned i = 0; i < period; ++i) { low[i] = Bits(3 + i % 50); high[i] = Bits(low[i] + i % 3); }
            for (unsigned i = 0; i < count; ++i) data[i] = i % 2 ? low[i % period] : high[i % period];
            for (unsigned wrong = 0; wrong <= count; wrong += 1 + count / 40) {
                const Bits kept = wrong < count ? data[wrong] : Bits(0);
                if (wrong < count) data[wrong] = wrong % 2 ? Bits(low[wrong % period] - 1) : Bits(~0u);
                unsigned long long found[2] = {0, ~0ull};
                for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
                    for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x)
                        kernel(data.data(), count, low.data(), high.data(), period, found);
                const bool right = wrong < count ? found[0] == 1 && found[1] == wrong : found[0] == 0;
                if (!right) {
                    std::printf("%s period %u count %u wrong %u\n", name, period, count, wrong);
                    std::exit(1);
                }
                if (wrong < count) data[wrong] = kept;
            }
        }
}

int main() {
    run<u8>(pyperf_outside_1, "1 byte");
    run<u16>(pyperf_outside_2, "2 bytes");
    run<u32>(pyperf_outside_4, "4 bytes");
}
"""


def test_the_kernel_that_compares_finds_one_wrong_element_anywhere(tmp_path):
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler emulates the kernel: set CXX")
    (tmp_path / "emulated.cpp").write_text(EMULATED)
    kernels = Path(__file__).parents[3] / "kernels" / "cuda"
    program = tmp_path / "emulated"
    subprocess.run(
        [compiler, "-std=c++17", "-O1", "-w", "-I", kernels, "-o", program, tmp_path / "emulated.cpp"], check=True
    )
    done = subprocess.run([program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_another_process_finds_a_kernel_and_what_its_compiler_reported_in_a_folder_of_its_users_alone(compiler, folder):
    options = [*OPTIONS, "--ptxas-options=--verbose"]
    first, second = (compiled(compiler(), options=options) for _ in range(2))
    assert (first.from_cache, second.from_cache) == (False, True)
    assert (first.cubin, first.log) == (second.cubin, second.log)
    assert "registers" in first.log
    assert folder.stat().st_mode & 0o077 == 0
    assert entry(folder).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "change",
    [
        {"source": ADD_ONE + "\n"},
        {"headers": {"unused.cuh": ""}},
        {"architecture": "sm_86"},
        {"options": [*OPTIONS, "-DX"]},
        {"options": ["--std=c++14"]},
        {"name": "other.cu"},
    ],
)
def test_whatever_a_kernel_depends_on_makes_another_entry(compiler, folder, change):
    compiled(compiler())
    assert not compiled(compiler(), **change).from_cache
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("kind", ["folder", "file"])
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.chmod(0o777), "can be written by other users"),
        pytest.param(
            lambda path: os.chown(path, 12345, 12345),
            "belongs to another user",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away"),
        ),
    ],
)
def test_what_others_own_or_could_have_written_is_not_read(compiler, folder, kind, spoil, words):
    compiled(compiler())
    spoil(folder if kind == "folder" else entry(folder))
    with pytest.warns(RuntimeWarning, match=words):
        assert not compiled(compiler()).from_cache


def test_a_link_in_the_folder_is_neither_read_nor_written_through(compiler, folder, tmp_path):
    first = compiled(compiler())
    file, elsewhere = entry(folder), tmp_path / "elsewhere"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    before = elsewhere.read_bytes()
    with pytest.warns(RuntimeWarning, match="symbolic link"):
        again = compiled(compiler())
    assert (again.from_cache, again.cubin) == (False, first.cubin)
    assert elsewhere.read_bytes() == before


LENGTH = len(MAGIC) + 32 + 7  # the lowest byte of the machine code's length
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut off": lambda content: content[: len(content) // 2],
    "one bit": lambda content: content[:-100] + bytes([content[-100] ^ 1]) + content[-99:],
    "a length": lambda content: content[:LENGTH] + b"\xff" + content[LENGTH + 1 :],
    "another format": lambda content: content.replace(b"kernel 2", b"kernel 1"),
    "empty": lambda content: b"",
    "longer": lambda content: content + b"more",
    "replaced": lambda content: b"something else altogether" * 1000,
}


@pytest.mark.parametrize("damage", [*DAMAGES, "another kernel's"])
def test_a_damaged_file_is_compiled_again_and_replaced(compiler, folder, damage):
    first = compiled(compiler())
    file = entry(folder)
    if damage == "another kernel's":
        compiled(compiler(), ADD_ONE.replace("1.0f", "2.0f"))
        [other] = set(folder.iterdir()) - {file}
        other.replace(file)
    else:
        file.write_bytes(DAMAGES[damage](file.read_bytes()))
    again = compiled(compiler())
    assert (again.from_cache, again.cubin) == (False, first.cubin)
    assert compiled(compiler()).from_cache


@pytest.mark.slow
def test_processes_and_threads_that_compile_a_kernel_at_once_get_the_same(cuda, compiler, folder, nvrtc):
    program = (
        "import sys; from pyperf_suite import _native\n"
        "from pyperf_suite.workloads.scratch import KernelCache\n"
        "compiler = KernelCache(_native.cuda.Compiler([sys.argv[1]]), sys.argv[2])\n"
        "sys.stdin.readline()\n"  # both are ready before either begins
        "compiler.compile('test.cu', sys.argv[3], {}, 'sm_80', ['--std=c++17'])"
    )
    command = [sys.executable, "-c", program, nvrtc, str(folder), ADD_ONE]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(3)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    assert entry(folder).suffix == ".kernel"
    assert compiled(compiler()).from_cache
    shared = KernelCache(cuda.Compiler([nvrtc]), "")
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(lambda _: compiled(shared).cubin, range(8)))) == 1


def test_a_folder_that_cannot_be_written_is_warned_of_once_and_kernels_compile_all_the_same(cuda, nvrtc, tmp_path):
    (tmp_path / "file").write_text("")
    compiler = KernelCache(cuda.Compiler([nvrtc]), str(tmp_path / "file" / "cache"))
    words = r"cannot be kept in .*file/cache \(File exists\).* set PYPERF_CACHE_DIR"
    with pytest.warns(RuntimeWarning, match=words):
        assert compiled(compiler).cubin.startswith(b"\x7fELF")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled(compiler).from_cache  # remembered in memory
        assert not compiled(compiler, architecture="sm_90").from_cache


def test_an_architecture_this_nvrtc_does_not_know_is_not_available(cuda, compiler):
    with pytest.raises(cuda.NotAvailable, match=r"does not know sm_35, only sm_.*: install the NVRTC of another CUDA"):
        compiled(compiler(), architecture="sm_35")
    with pytest.raises(ValueError, match=r"Architecture 'hopper' is not one: ask for sm_80, sm_90a"):
        compiled(compiler(), architecture="hopper")


def test_where_there_is_no_nvrtc_the_package_that_brings_it_is_named(native):
    program = (
        "from pyperf_suite import _native\n"
        "try: print('found', _native.cuda.Compiler([]).path)\n"
        "except _native.cuda.NotAvailable as reason: print(reason)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    if done.stdout.startswith("found"):
        pytest.skip(f"the system's loader finds one: {done.stdout.split()[1]}")
    assert "libnvrtc.so.13 cannot be opened: install NVRTC" in done.stdout
    assert "pip install nvidia-cuda-nvrtc" in done.stdout
