"""Collectives between processes on the GPU at hand, each implementation checked on every rank as the suite does.

Several ranks share the GPU, which NCCL allows for tests of function where each looks as if it had a host of its own.
"""

import os
import subprocess
import sys

import pytest

from pyperf_suite.hardware.devices import Device
from pyperf_suite.record.case import Case
from pyperf_suite.runner.profiles import QUICK
from pyperf_suite.runner.workers import WorkerPool
from pyperf_suite.workloads.collective import CollectiveParameters
from tests.core.native.test_nccl_on_gpu import SHARING

pytestmark = pytest.mark.gpu

RANK = """
import sys
from pyperf_suite.errors import Unsupported
from pyperf_suite.hardware.devices import resolve
from pyperf_suite.workloads.collective.collective import Collective
from pyperf_suite.workloads.collective import CollectiveParameters, DTYPES, OPERATIONS, REDUCTIONS
from pyperf_suite.workloads.workload import ExecutionContext
from pyperf_suite.ranks.group import Group

device, names = resolve(sys.argv[1]), sys.argv[2:]
with Group() as group:
    for name in names:
        for op, operation in OPERATIONS.items():
            if group.count == 1 and op in ("ping_pong", "bisection", "pairs"):
                continue
            for dtype in DTYPES:
                for reduction in REDUCTIONS if operation.reduces and dtype == "float32" else ("sum",):
                    parameters = CollectiveParameters(op, 4800, group.count, dtype, reduction=reduction)
                    try:
                        place = ExecutionContext(device, group=group, deadline_s=60)
                        transfers = Collective().implementation(name).prepare(parameters, place)
                    except Unsupported as reason:
                        print("unsupported", name, op, dtype, reason)
                        continue
                    for turn in range(2):
                        transfers.poison()
                        transfers.time(1, 60)
                        checked = transfers.check()
                        if checked.wrong:
                            print("wrong", name, parameters, checked)
                    transfers.close()
    group.gather("end", None, 60)
    print("done")
"""


def run_ranks(count: int, device: str, *names: str) -> list[str]:
    """Return each rank's output once all have ended well, started as a launcher would."""
    torch_distributed = pytest.importorskip("torch.distributed")
    store = torch_distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    place = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "localhost", "MASTER_PORT": store.port}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, device, *names],
            env=os.environ
            | SHARING
            | {"NCCL_HOSTID": f"host{rank}", "RANK": str(rank), "TORCHELASTIC_USE_AGENT_STORE": "True"}
            | {name: str(value) for name, value in place.items()},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    said = [process.communicate(timeout=500)[0] for process in running]
    assert [process.returncode for process in running] == [0] * count, said
    return said


@pytest.mark.parametrize("count", [1, 2, 3])
def test_ranks_that_share_a_gpu_find_every_operation_and_type_exact(count):
    for said in run_ranks(count, "cuda:0", "nccl", "nccl_graph"):
        assert "wrong" not in said
        assert said.endswith("done\n")


@pytest.mark.parametrize("name", ["nccl", "nccl_graph", "c10d_nccl"])
def test_one_rank_is_checked_and_timed_through_every_way_to_call_nccl(name):
    with WorkerPool(Device("cuda"), 60) as pool:
        for op in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "send_receive"):
            case = Case("collective", CollectiveParameters(op, 1 << 20, 1, "bfloat16"), name)
            answer = pool.measure(0, case, QUICK.effort)
            if answer["outcome"] == "unsupported":
                pytest.skip(answer["reason"])
            assert answer["outcome"] == "ok", answer
            assert answer["metrics"]["time"]["value"] > 0
