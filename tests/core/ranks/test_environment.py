import os
import subprocess
import sys

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.ranks.group import connect
from pyperf_suite.ranks.launch import ALONE, rank_environment
from pyperf_suite.run import RunRequest, join_only_for_ranks

TORCHRUN = {
    "RANK": "9",
    "WORLD_SIZE": "16",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "8",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
# Variables that sbatch sets for its script, which is no task, and srun for each task of a step.
BATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0", "SLURM_NNODES": "4", "SLURM_JOB_ID": "77"}
SLURM = BATCH | {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "8"}
OF_A_STEP_OF_TWO = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1", "SLURM_PROCID": "1", "MASTER_ADDR": "a"}
POD = {"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "pod-0", "MASTER_PORT": "29500"}
OTHERS = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8", "PMIX_RANK": "3", "PMI_RANK": "3"}

WITHOUT_LOCAL_SIZE = {name: value for name, value in TORCHRUN.items() if name != "LOCAL_WORLD_SIZE"}
AT_NODE_0 = SLURM | {"MASTER_ADDR": "node0"}


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        (TORCHRUN, {"rank": 9, "count": 16, "local_rank": 1, "nodes": 2, "launcher": "torchrun"}),
        (TORCHRUN, {"address": "node0", "port": 29500, "agent_store": True}),
        (SLURM | {"SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1"}, {"rank": 3, "count": 8, "nodes": 4, "launcher": "slurm"}),
        # The ranks of this node are known only where the launcher names them.
        *((TORCHRUN, {"on_node": 8}), (WITHOUT_LOCAL_SIZE, {"on_node": 0})),
        *((AT_NODE_0, {"on_node": 0}), (AT_NODE_0 | {"SLURM_NNODES": "1"}, {"on_node": 8})),
        # All ranks of a job choose the same port.
        (AT_NODE_0, {"port": rank_environment(AT_NODE_0 | {"SLURM_PROCID": "0"}).port}),
        (SLURM | OF_A_STEP_OF_TWO, {"rank": 1, "count": 2, "nodes": 1, "on_node": 2}),
        *((each, {"is_pod": is_pod}) for each, is_pod in ((POD, True), (POD | {"LOCAL_WORLD_SIZE": "8"}, False))),
        *((each, {"is_pod": False}) for each in (TORCHRUN, AT_NODE_0, {})),
        *((each, vars(ALONE)) for each in ({}, {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, BATCH, OTHERS)),
        *((each, vars(ALONE)) for each in (SLURM | {"SLURM_STEP_NUM_TASKS": "1"}, SLURM | {"SLURM_PTY_PORT": "4"})),
    ],
)
def test_a_launcher_tells_a_rank_its_place(environ, told):
    found = rank_environment(environ)
    assert {name: getattr(found, name) for name in told} == told


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        (TORCHRUN | {"RANK": "16"}, "rank 16 of 16, but ranks run from 0 to 15"),
        (TORCHRUN | {"WORLD_SIZE": "many"}, "WORLD_SIZE is 'many'"),
        ({"RANK": "0"}, "WORLD_SIZE is ''"),
        (TORCHRUN | {"MASTER_ADDR": ""}, "did not set MASTER_ADDR"),
        (SLURM | {"SLURM_STEP_NUM_TASKS": "some"}, "SLURM_STEP_NUM_TASKS is 'some'"),
        (SLURM, "set MASTER_ADDR to its node"),
    ],
)
def test_contradictions_are_one_sentence(environ, sentence):
    with pytest.raises(UserError, match=sentence):
        rank_environment(environ)


SAYS = "from pyperf_suite.ranks.launch import rank_environment as place; print(place().launcher)"


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_variables_that_torchrun_left_to_a_shell_are_no_launch():
    left = os.environ | TORCHRUN | {"TORCHELASTIC_RUN_ID": "none"}
    exports = " ".join(f"{name}={value}" for name, value in (TORCHRUN | {"TORCHELASTIC_RUN_ID": "none"}).items())
    shell = ["sh", "-c", f'export {exports}; "$0" -c "$1"; true', sys.executable, SAYS]
    assert subprocess.run(shell, capture_output=True, text=True, check=True).stdout == "none\n"
    # A program that starts ranks is one.
    rank = [sys.executable, "-c", SAYS]
    assert subprocess.run(rank, env=left, capture_output=True, text=True, check=True).stdout == "torchrun\n"


@pytest.mark.parametrize(("probe", "is_rank"), [("topology", False), ("collectives", True)])
def test_a_pod_joins_the_others_only_for_probes_that_take_ranks(probe, is_rank, monkeypatch):
    for name, value in POD.items():
        monkeypatch.setenv(name, value)
    join_only_for_ranks(RunRequest((probe,), device="cpu"))
    assert rank_environment().launched == is_rank


@pytest.mark.slow
def test_a_port_in_use_and_a_store_that_is_not_there_are_one_sentence_each():
    distributed = pytest.importorskip("torch.distributed")
    taken = distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    here = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(taken.port)}
    with pytest.raises(UserError, match="port may be in use"):
        connect(rank_environment(here), 1)
    port = taken.port
    del taken
    with pytest.raises(UserError, match="could not reach the rendezvous"):
        connect(rank_environment(here | {"RANK": "1", "MASTER_PORT": str(port)}), 1)
