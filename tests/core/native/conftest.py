"""The native module and doubles of libcuda and libnccl for tests that ask for them; where one is missing they skip."""

import ctypes
import functools
import gc
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HOW_TO_BUILD = "the native extension is not built: run `pip install -e .` in the checkout"


@pytest.fixture(scope="session")
def native() -> ModuleType:
    """`pyperf_suite._native`, or a skip that says how to build it."""
    return pytest.importorskip("pyperf_suite._native", reason=HOW_TO_BUILD)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `isa` runs once for each instruction set this processor has kernels for."""
    if "isa" not in metafunc.fixturenames:
        return
    if importlib.util.find_spec("pyperf_suite._native") is None:
        metafunc.parametrize("isa", [pytest.param("none", marks=pytest.mark.skip(reason=HOW_TO_BUILD))])
        return
    metafunc.parametrize("isa", importlib.import_module("pyperf_suite._native").isas())


class FakeLibcuda:
    """The double of libcuda in fake_libcuda.c: its figures, the failures that a test sets, what was queued on it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        self._library.fake_log.restype = ctypes.c_char_p
        self._library.fake_get.restype = ctypes.c_longlong
        self._library.fake_reset()

    def set(self, **figures: int) -> None:
        for name, value in figures.items():
            self._library.fake_set(name.encode(), ctypes.c_longlong(value))

    def get(self, figure: str) -> int:
        return int(self._library.fake_get(figure.encode()))

    def fail(self, function: str, result: int, after: int = 0) -> None:
        """Let the function answer `result` once, after that many more calls of it."""
        self._library.fake_fail(function.encode(), result, after)

    def log(self) -> list[str]:
        lines = self._library.fake_log().decode().splitlines()
        self._library.fake_forget_log()
        return lines


def built(double: str, folder: Path, *options: str) -> Path:
    """A double, built in that folder; a skip where there is no C compiler."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip(f"no C compiler builds {double}: set CC")
    here = Path(__file__).parent
    library = folder / f"{double}.so"  # no name that the real one would be found by
    strict = ["-O1", "-Wall", "-Wextra", "-Werror", "-I", here.parents[2] / "csrc"]
    subprocess.run(
        [compiler, "-shared", "-fPIC", *strict, *options, "-o", library, here / f"{double}.c", "-lm", "-lrt"],
        check=True,
    )
    return library


@pytest.fixture
def disagreements(tmp_path: Path) -> Callable[..., str]:
    """A compiler's complaints on a header in csrc: disagreements("nccl_api_check.cpp", "nccl/nccl_api.h", folder).

    The last are folders of NVIDIA's headers; `mistakes` are texts of ours to replace before. Nothing is said where all
    agrees; a skip where there is no compiler.
    """

    def said(check: str, ours: str, *theirs: Path, mistakes: Mapping[str, str] | None = None) -> str:
        compiler = shutil.which(os.environ.get("CXX", "c++"))
        if compiler is None:
            pytest.skip("no C++ compiler: set CXX")
        here = Path(__file__).parent
        text = (here.parents[2] / "csrc" / ours).read_text()
        for right, wrong in (mistakes or {}).items():
            assert text.count(right) == 1, right
            text = text.replace(right, wrong)
        header = tmp_path / "ours" / ours
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text(text)
        folders = [word for folder in (tmp_path / "ours", tmp_path) for word in ("-I", folder)]
        folders += [word for folder in theirs for word in ("-isystem", folder)]
        done = subprocess.run(
            [compiler, "-std=c++17", "-fsyntax-only", *folders, here / check], capture_output=True, text=True
        )
        return done.stderr if done.returncode else ""

    return said


@pytest.fixture(scope="session")
def fake_libcuda_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("fake_libcuda", tmp_path_factory.mktemp("double"))


@pytest.fixture(scope="module")
def small_heap() -> Iterator[None]:
    """Leave objects of other tests out of collections: with them, each would take a third of a second."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def fake(fake_libcuda_path: Path, monkeypatch: pytest.MonkeyPatch, small_heap: None) -> FakeLibcuda:
    """The double as it was built, and PYPERF_LIBCUDA naming it."""
    gc.collect()  # what an exception of an earlier test keeps alive would be given back during this one
    monkeypatch.setenv("PYPERF_LIBCUDA", str(fake_libcuda_path))
    return FakeLibcuda(fake_libcuda_path)


@pytest.fixture
def cuda(native: ModuleType) -> ModuleType:
    return native.cuda


@pytest.fixture
def context(cuda: ModuleType, fake: FakeLibcuda) -> Any:
    return cuda.Context(cuda.Driver())


@pytest.fixture(scope="session")
def nvrtc() -> str:
    """The path of the NVRTC that a Python package brought; a skip that names the package where there is none."""
    for folder in sys.path:
        for library in Path(folder).glob("nvidia/*/lib/libnvrtc.so.1?"):
            return str(library)
    pytest.skip("needs NVRTC: pip install nvidia-cuda-nvrtc")


@pytest.fixture(scope="session")
def fake_libnccl(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The double of libnccl as a version of it has its symbols: fake_libnccl(21400), or with more options."""
    return functools.cache(
        lambda version=23203, *options: built(
            "fake_libnccl", tmp_path_factory.mktemp("double"), f"-DFAKE_VERSION={version}", *options
        )
    )


@pytest.fixture
def nccl(native: ModuleType, fake_libnccl: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`pyperf_suite._native.nccl`, and PYPERF_LIBNCCL naming the newest double."""
    monkeypatch.setenv("PYPERF_LIBNCCL", str(fake_libnccl()))
    return native.nccl


class Ranks:
    """Ranks as threads of this process, each with a communicator of its own over the double."""

    def __init__(self, nccl: ModuleType) -> None:
        self._nccl = nccl

    def outcomes(
        self, count: int, program: Callable[[Any], Any], deadline_s: float = 20, ids: int = 1, **options: Any
    ) -> list[Any]:
        """Results or errors of `program(communicator)` on each rank."""
        library, device = self._nccl.Library(), self._nccl.HostDevice()
        unique_ids = b"".join(library.unique_id() for _ in range(ids))

        def one(rank: int) -> Any:
            try:
                return program(self._nccl.Communicator(library, device, unique_ids, rank, count, deadline_s, **options))
            except Exception as failure:
                return failure

        with ThreadPoolExecutor(count) as threads:
            return list(threads.map(one, range(count)))

    def results(self, count: int, program: Callable[[Any], Any], **options: Any) -> list[Any]:
        """Results on each rank. Raises the error of the lowest that failed."""
        outcomes = self.outcomes(count, program, **options)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        return outcomes


@pytest.fixture
def ranks(nccl: ModuleType) -> Ranks:
    return Ranks(nccl)
