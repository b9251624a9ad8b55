"""Fixtures and options of all tests: `pytest --benchmark-only` leaves them out, GPU tests say why they are skipped."""

import fcntl
import gc
import os
import random
import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import hypothesis
import pytest

import pyperf_suite
from pyperf_suite.hardware.devices import Unavailable, driver
from pyperf_suite.hardware.kernel_files import KernelFiles

# Tools of the repository are imported from its root, which comes last: the package is the one that is installed.
sys.path.append(str(Path(__file__).parents[1]))

from tests.families import family_of

# Ten thousand tests are objects that stay: looked through seldom, they are collected in three quarters of the time.
gc.set_threshold(100_000, 20, 50)

# The same examples in each run: a change is judged by what it changes. HYPOTHESIS_PROFILE=default searches on.
hypothesis.settings.register_profile("same_each_time", derandomize=True, deadline=None)
# For tests/hardening, where one example is a hundred inputs: others in each run, and none may take long.
hypothesis.settings.register_profile(
    "thorough",
    max_examples=1_000,
    deadline=60_000,
    database=None,
    phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),  # tracing, to explain, would take most of the time
    suppress_health_check=list(hypothesis.HealthCheck),
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same_each_time"))

MEASURED_TABLES = "PYPERF_MEASURED_TABLES"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add options for the tests and sets of parameters that a change runs: see tests/families.py."""
    parser.addoption(
        "--draw", type=int, metavar="N", help="of each test that is not slow, N sets of parameters at most"
    )
    parser.addoption("--families", action="store_true", help="of slow tests, only representatives of each family")
    parser.addoption("--draw-seed", metavar="TEXT", help="what draws them; default: the commit, or else the version")


def pytest_configure(config: pytest.Config) -> None:
    """Find the seed once: processes that run tests for this one are handed it."""
    if config.option.draw_seed is None and (config.option.draw or config.option.families):
        config.option.draw_seed = commit_or_version(config.rootpath)


def commit_or_version(root: Path) -> str:
    """The first letters of the commit that is checked out; the version where there is no repository or git."""
    try:
        git = ["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"]
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return pyperf_suite.__version__


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = config.option.draw_seed
    return f"tests are drawn by {seed}; again with --draw-seed {seed} (make: SEED={seed})" if seed else None


@pytest.hookimpl(tryfirst=True)  # before -m leaves out what is slow
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not drawn. A test of the night counts as slow."""
    for item in items:
        if item.get_closest_marker("nightly"):
            item.add_marker("slow")
    slow = [item for item in items if item.get_closest_marker("slow")]
    others = [item for item in items if not item.get_closest_marker("slow")]
    if config.option.draw:
        others = drawn(others, config, lambda node_id: (node_id.partition("[")[0], config.option.draw))
    if config.option.families:
        one_time = [item for item in slow if not (item.get_closest_marker("nightly") or item.get_closest_marker("gpu"))]
        slow = drawn(one_time, config, family_of)
    left = {*others, *slow}
    if len(left) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in left])
        items[:] = [item for item in items if item in left]


def drawn(
    items: list[pytest.Item], config: pytest.Config, group_of: Callable[[str], tuple[str, int]]
) -> list[pytest.Item]:
    """Draw as many items of each group as go with it: the same for a seed, whatever else is collected."""
    groups, numbers = defaultdict(list), {}
    for item in items:
        name, number = group_of(item.nodeid)
        numbers[name] = number
        groups[name].append(item)
    seed = config.option.draw_seed
    return [
        item
        for name, group in groups.items()
        for item in random.Random(f"{seed} {name}").sample(group, min(numbers[name], len(group)))
    ]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the command that runs just one failed test, whatever signs its parameters have."""
    failed = {report.nodeid for kind in ("failed", "error") for report in terminalreporter.stats.get(kind, ())}
    for node_id in sorted(failed):
        terminalreporter.write_line(f"alone: {sys.executable} -m pytest {shlex.quote(node_id)}")


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Leave the tests out of `pytest --benchmark-only`, which would collect them only to skip each."""
    return True if config.getoption("benchmark_only", default=False) else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked `gpu` where there is none, with the driver's reason."""
    if item.get_closest_marker("gpu") and isinstance(driver(), Unavailable):
        pytest.skip(f"needs a CUDA device, but {driver()}")


@pytest.fixture(scope="session")
def measured_tables(pytestconfig: pytest.Config) -> Path:
    """The folder of published measurements, which are not the project's to ship: a test skips where they are not."""
    folder = Path(os.environ.get(MEASURED_TABLES) or pytestconfig.rootpath.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(
            f"the published measurements are not at {folder}: set {MEASURED_TABLES} to the folder that has them"
        )
    return folder


@pytest.fixture(scope="session")
def wheel(pytestconfig: pytest.Config) -> Callable[[str, str], Path]:
    """A folder of a wheel too large to be installed for a few tests, or with too many requirements.

    wheel("nvidia-cutlass", "cutlass_library/source/include") has pip fetch the version in constraints.txt, without what
    it requires, and keeps that folder of it in build/tests; a skip where pip cannot.
    """

    def folder_of(package: str, folder: str) -> Path:
        lines = (pytestconfig.rootpath / "constraints.txt").read_text().splitlines()
        [pin] = [line for line in lines if line.startswith(f"{package}==")]
        kept = pytestconfig.rootpath / "build" / "tests" / "wheels" / pin
        kept.parent.mkdir(parents=True, exist_ok=True)
        with kept.with_name(f"{pin}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                with tempfile.TemporaryDirectory(dir=kept.parent) as folder_made:
                    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download"]
                    patience = ["--quiet", "--retries", "1", "--timeout", "15"]
                    one = ["--no-deps", "--only-binary=:all:", "--dest", folder_made, pin]
                    if subprocess.run([*pip, *patience, *one], capture_output=True).returncode:
                        pytest.skip(f"needs {pin}, which pip cannot fetch: name a folder that has it in PIP_FIND_LINKS")
                    [archive] = Path(folder_made).glob("*.whl")
                    with zipfile.ZipFile(archive) as files:
                        names = [name for name in files.namelist() if name.startswith(f"{folder}/")]
                        files.extractall(Path(folder_made) / "files", names)
                    (Path(folder_made) / "files").rename(kept)
        return kept / folder

    return folder_of


@pytest.fixture(scope="session")
def cuda_headers() -> Path:
    """The folder of CUDA's own headers: Triton's wheel brings them, and the wheels of CUDA itself."""
    for folder in map(Path, sys.path):
        for headers in (folder / "triton" / "backends" / "nvidia" / "include", *folder.glob("nvidia/*/include")):
            if all((headers / name).is_file() for name in ("cuda.h", "cuda_fp8.h", "crt/host_defines.h")):
                return headers
    pytest.skip("needs CUDA's headers, which Triton's wheel brings: pip install triton")


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[Mapping[str, str]], KernelFiles]:
    """Write the given files (path to content) below a root of their own, and read that root as a machine."""

    def write(contents: Mapping[str, str]) -> KernelFiles:
        for path, content in contents.items():
            target = tmp_path / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.encode("utf-8", "surrogateescape"))
        return KernelFiles(tmp_path)

    return write
