"""The real libnccl on the GPU at hand: one rank, and several that share it, which NCCL allows for tests of function.

tests/core/gpu/test_collective_on_gpu.py has every operation, type and reduction.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pyperf_suite.hardware.devices import gpus

pytestmark = pytest.mark.gpu

# Ranks that share a GPU must look as if each had a host of its own, and talk over the loopback (NCCL's user guide,
# "Environment Variables"); NCCL_MULTI_RANK_GPU_ENABLE is asked for since 2.30.
SHARING = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_MAX_CTAS": "2",
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
}

RANK = """
import os, runpy, signal, sys, time
from pathlib import Path
import numpy as np
from pyperf_suite._native import cuda, nccl

program, rank, ranks, folder, helpers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5]
library = nccl.Library(
    [str(path) for folder_ in sys.path for path in Path(folder_).glob("nvidia/nccl/lib/libnccl.so.2")]
)
if rank == 0:
    (folder / "new").write_bytes(library.unique_id())
    (folder / "new").rename(folder / "id")
while not (folder / "id").exists():
    time.sleep(0.01)
device = nccl.CudaDevice(cuda.Context(cuda.Driver(), 0))
communicator = nccl.Communicator(library, device, (folder / "id").read_bytes(), rank, ranks, 60)

def in_place_sum(count=1024, **options):
    buffer = nccl.Buffer(communicator, 4 * count, **options)
    buffer.write(np.ones(count, np.float32))
    return buffer, nccl.Collective(communicator, "all_reduce", count, "float32", buffer, in_place=True)

try:
    exec(program)
    communicator.finalize(60)
except nccl.NcclError as failure:
    print(type(failure).__name__, failure, flush=True)
    os._exit(3)
"""

WAYS = """
for graph_calls in (0, 1):
    for registered in (False, True):
        buffer, collective = in_place_sum(registered=registered)
        seconds, arrival_ns, completion_ns = collective.time(8, 60, graph_calls=graph_calls)
        assert (seconds > 0).all() and (completion_ns > arrival_ns).all()
        assert registered == buffer.registered
        sum_ = np.frombuffer(buffer.read(), np.float32)
        assert (sum_ == float(ranks) ** 9).all(), sum_
buffer, collective = in_place_sum()
collective.time(2, 60, graph_calls=16)
sum_ = np.frombuffer(buffer.read(), np.float32)
assert (sum_ == float(ranks) ** 33).all(), sum_
data = runpy.run_path(helpers)
for factor in (0.5, 3.0):
    received = data["run_once"](
        nccl, communicator, "all_reduce", 100, "bfloat16", reduction="premulsum", factor=factor * (rank + 1)
    )
    due = sum(factor * (each + 1) * data["sent"](each, 100) for each in range(ranks))
    assert np.array_equal(data["decoded"](received, "bfloat16"), due), factor
if library.optional["ncclCommSplit"]:
    part = communicator.split(0, -rank, 60)
    assert (part.rank, part.ranks) == (ranks - 1 - rank, ranks)
    part.finalize(60)
print("done")
"""

LEFT_ALONE = """
buffer, collective = in_place_sum()
collective.run(60)
if rank == 1:
    os.kill(os.getpid(), signal.{how})
begin = time.monotonic()
try:
    collective.run(2)
finally:
    print(f"{{time.monotonic() - begin:.3f}} s, lost {{communicator.lost}}", flush=True)
"""


def run(program: str, ranks: int, folder: Path) -> list[subprocess.Popen[str]]:
    helpers = Path(__file__).parent / "test_nccl_data.py"
    return [
        subprocess.Popen(
            [sys.executable, "-c", RANK, program, str(rank), str(ranks), str(folder), str(helpers)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | (SHARING | {"NCCL_HOSTID": f"host{rank}"} if ranks > 1 else {}),
        )
        for rank in range(ranks)
    ]


def ended(running: list[subprocess.Popen[str]]) -> list[str]:
    said = [process.communicate(timeout=300)[0] for process in running]
    assert [process.returncode for process in running] == [0] * len(running), said
    return said


@pytest.fixture
def silicon():
    """A skip on the double of libcuda: its stream waits for a rank that is gone, and it knows no memory but its own."""
    if gpus()[0].name.startswith("Fake"):
        pytest.skip("the double of libcuda stands in for a GPU here")


@pytest.fixture(autouse=True)
def nccl_at_hand(native):
    paths = [str(path) for folder in sys.path for path in Path(folder).glob("nvidia/nccl/lib/libnccl.so.2")]
    try:
        native.nccl.Library(paths)
    except native.nccl.NotAvailable as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("ranks", [1, 2])
def test_it_is_captured_replayed_registered_split_and_multiplied_before_it_sums(tmp_path, silicon, ranks):
    assert all("done" in said for said in ended(run(WAYS, ranks, tmp_path)))


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_a_rank_left_alone_ends_at_its_deadline(tmp_path, silicon, how):
    alone, other = run(LEFT_ALONE.format(how=how), 2, tmp_path)
    try:
        output = alone.communicate(timeout=120)[0]
    finally:
        other.send_signal(signal.SIGKILL)
        other.communicate()
    assert alone.returncode == 3, output
    assert "DeadlineExceeded On rank 0 of 2, all_reduce of 1024 float32 did not end within 2 s" in output or (
        "NcclError On rank 0 of 2" in output  # over sockets NCCL may see that the connection broke
    )
