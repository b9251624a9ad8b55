"""How GPU tests are kept apart: a time limit each, and no test after one that lost the CUDA context.

`pytest tests/core/gpu -n 1` runs them in a worker that is replaced when it ends; without xdist a lost context ends
the run.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyperf_suite.errors import Unsupported
from pyperf_suite.hardware.devices import gpus
from pyperf_suite.runner.measuring import measure_case
from pyperf_suite.workloads.backends import CudaDevice, cuda_device

HERE = Path(__file__).parent
SECONDS_A_TEST = 60
_watched: set[str] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--first-of-each", action="store_true", help="of each GPU test, run only its first case")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one case of each test if asked; give GPU tests their time limits."""
    if config.getoption("first_of_each", default=False):
        first: dict[str, pytest.Item] = {}
        for item in items:
            first.setdefault(item.nodeid.partition("[")[0], item)
        kept = list(first.values())
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
    _watched.update(item.nodeid for item in items if item.path.is_relative_to(HERE))
    for item in items:
        if item.nodeid not in _watched and not item.get_closest_marker("gpu"):
            continue  # of another folder, in a run of all tests
        if config.pluginmanager.hasplugin("timeout") and not item.get_closest_marker("timeout"):
            # By a thread that ends the process: a signal's handler waits for a call into the driver to return.
            item.add_marker(pytest.mark.timeout(SECONDS_A_TEST, method="thread"))


@pytest.fixture
def device() -> CudaDevice:
    return cuda_device(0)


def memory(device: CudaDevice, array: np.ndarray) -> Any:
    copy = device.native.DeviceMemory(device.context, array.nbytes)
    copy.write(np.ascontiguousarray(array))
    return copy


@pytest.fixture(scope="session")
def is_double() -> bool:
    """True if the GPU is the double of libcuda: it is slow, and executes no PTX but that of our own kernels."""
    return bool(gpus()) and gpus()[0].name.startswith("Fake")


@pytest.fixture(autouse=True)
def skipped_without_a_torch_for_gpus(
    is_double: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Skip on the double what torch would have to do there: its build for CPUs does not know that there is a GPU."""
    if not is_double or not hasattr(request.module, "measure_case"):
        return

    def measured(*arguments: Any, **named: Any) -> dict[str, Any]:
        answer = measure_case(*arguments, **named)
        if "cannot use the GPU" in answer.get("reason", ""):
            pytest.skip(answer["reason"])
        return answer

    monkeypatch.setattr(request.module, "measure_case", measured)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_logfinish(nodeid: str) -> Iterator[None]:
    """Leave the process once the context is lost, while xdist still counts this test as the one that ran."""
    result = yield
    why = _lost_context() if nodeid in _watched else ""
    if why:
        words = f"{nodeid} lost the CUDA context ({why})"
        if "PYTEST_XDIST_WORKER" in os.environ:
            print(words, file=sys.__stderr__, flush=True)
            os._exit(1)
        pytest.exit(f"{words}: with `-n 1` (pytest-xdist) the tests after it would run in a fresh process", 3)
    return result


def _lost_context() -> str:
    """Return the error of the primary context, which torch and our extension share, if it is lost; else empty."""
    torch, ours = sys.modules.get("torch"), sys.modules.get("pyperf_suite.workloads.backends")
    if ours is None or not (ours.cuda_device.cache_info().currsize or (torch and torch.cuda.is_initialized())):
        return ""
    try:
        ours.cuda_device(0).context.synchronize()
    except Unsupported:
        return ""
    except Exception as error:
        return str(error) or type(error).__name__
    return ""
