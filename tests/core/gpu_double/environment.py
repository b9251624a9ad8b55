"""The doubles of NVIDIA's libraries, built, and the environment in which the suite takes them for a GPU.

`eval "$(python tests/core/gpu_double/environment.py)"` lets a shell run on it. Arguments are the GPU's figures:
multiprocessors=4 l2_bytes=65536. Times there are of a model, and the device's name says that it is no GPU.
"""

import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent  # tests/core
BUILT = TESTS.parents[1] / "build" / "tests"  # git ignores it, and it may be deleted
STANDARD_HEADERS = (
    "algorithm bit cmath cstdint cstdio cstdlib cstring deque functional map memory random type_traits vector"
)
# A small device: two waves of tiles are few tiles, and a few sets of small operands do not fit its L2.
FIGURES = {"multiprocessors": 4, "l2_bytes": 1 << 16, "kernel_ns": 500}
UUID = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"  # as fake_libcuda.c has it


def environment(folder: Path | None = None, **figures: int) -> dict[str, str]:
    """The variables that name the doubles; what is compiled on them is kept in the folder, by default the build's."""
    doubles = built()
    return {
        "PYPERF_LIBCUDA": str(doubles / "fake_libcuda.so"),
        "PYPERF_LIBNVRTC": str(doubles / "fake_libnvrtc.so"),
        "PYPERF_LIBNVML": str(doubles / "fake_nvml.so"),
        "PYPERF_LIBNCCL": str(doubles / "fake_libnccl.so"),
        "PYPERF_CACHE_DIR": str(doubles / "kernels" if folder is None else folder),
        "FAKE_LIBCUDA": " ".join(f"{name}={value}" for name, value in (FIGURES | figures).items()),
    }


def built() -> Path:
    """The folder of the doubles, named by the hash of all that they, and what they compile, are made of."""
    sources = [*HERE.iterdir(), *(TESTS / "kernels").glob("emulated_*")]
    sources += [TESTS / "native" / name for name in ("fake_libcuda.c", "fake_libnccl.c", "fake_elements.h")]
    sources += [TESTS / "native" / "fake_nvml.c", TESTS.parents[1] / "csrc" / "nccl" / "nccl_api.h"]
    state = hashlib.sha256(str((HERE, compilers())).encode())
    for source in sorted(each for each in sources if each.is_file() and each.suffix != ".py"):
        state.update(source.read_bytes())
    folder = BUILT / f"double-{state.hexdigest()[:16]}"
    BUILT.mkdir(parents=True, exist_ok=True)
    with (BUILT / "double.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=BUILT) as made:
                _build(Path(made), folder)
                Path(made).chmod(0o755)
                shutil.copytree(made, folder.with_suffix(".new"), dirs_exist_ok=True)
            folder.with_suffix(".new").rename(folder)
            (folder / "kernels").mkdir(mode=0o700)
    return folder


def compilers() -> tuple[list[str], list[str]]:
    """The commands of the C and the C++ compiler. Raises FileNotFoundError, with what to set, where there is none."""
    found = shlex.split(os.environ.get("CC", "cc")), shlex.split(os.environ.get("CXX", "c++"))
    for command, variable in zip(found, ("CC", "CXX"), strict=True):
        if shutil.which(command[0]) is None:
            raise FileNotFoundError(f"no compiler builds the doubles: set {variable}")
    return found


def _build(folder: Path, final: Path) -> None:
    c, cxx = compilers()
    strict = ["-O1", "-Wall", "-Wextra", "-Werror", "-I", str(TESTS.parents[1] / "csrc")]
    shared = ["-shared", "-fPIC"]
    names = [f'-DFAKE_UUID="{UUID}"', '-DFAKE_NAME="Fake H200"']
    headers = "".join(f"#include <{name}>\n" for name in (*STANDARD_HEADERS.split(), "ucontext.h"))
    (folder / "standard.h").write_text(headers)
    where = [f'-DSOURCES="{HERE}"', f'-DBUILT="{final}"']
    commands = [
        [*c, *shared, *strict, "-o", "fake_libcuda.so", TESTS / "native" / "fake_libcuda.c"],
        [*c, *shared, *strict, "-DFAKE_VERSION=23203", "-o", "fake_libnccl.so", TESTS / "native" / "fake_libnccl.c"],
        [*c, *shared, "-w", *names, "-o", "fake_nvml.so", TESTS / "native" / "fake_nvml.c"],
        [*cxx, *shared, "-std=c++20", *strict, *where, "-o", "fake_libnvrtc.so", HERE / "fake_libnvrtc.cpp"],
        [*cxx, "-std=c++20", *strict, "-o", "run_kernels", HERE / "run_kernels.cpp"],
        # Half of a compiler's time on a kernel would go into these; the flags are those of fake_libnvrtc.cpp.
        [
            *cxx,
            "-std=c++20",
            "-O1",
            "-fPIC",
            "-w",
            "-fno-gnu-unique",
            "-x",
            "c++-header",
            "standard.h",
            "-o",
            "standard.h.gch",
        ],
    ]
    for command in commands:
        libraries = ["-lm", "-lrt", "-ldl"] if str(command[-1]).endswith((".c", ".cpp")) else []
        subprocess.run([*map(str, command), *libraries], cwd=folder, check=True)


def main(arguments: Sequence[str]) -> None:
    figures = {name: int(value) for name, value in (argument.split("=") for argument in arguments)}
    for name, value in environment(**figures).items():
        print(f"export {name}={shlex.quote(value)}")


if __name__ == "__main__":
    main(sys.argv[1:])
