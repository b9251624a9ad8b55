import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.ranks.group import connect
from pyperf_suite.ranks.launch import ALONE, rank_environment

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
SLURM = {"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_NNODES": "4", "SLURM_JOB_ID": "77"}


WITHOUT_LOCAL_SIZE = {name: value for name, value in TORCHRUN.items() if name != "LOCAL_WORLD_SIZE"}
AT_NODE_0 = SLURM | {"MASTER_ADDR": "node0"}


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        (TORCHRUN, {"rank": 9, "count": 16, "local_rank": 1, "nodes": 2, "launcher": "torchrun"}),
        (TORCHRUN, {"address": "node0", "port": 29500, "agent_store": True}),
        (SLURM | {"SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1"}, {"rank": 3, "count": 8, "nodes": 4, "launcher": "slurm"}),
        # Who is on this node is known only where the launcher says it.
        *((TORCHRUN, {"on_node": 8}), (WITHOUT_LOCAL_SIZE, {"on_node": 0})),
        *((AT_NODE_0, {"on_node": 0}), (AT_NODE_0 | {"SLURM_NNODES": "1"}, {"on_node": 8})),
        # All ranks of a job choose the same port.
        (AT_NODE_0, {"port": rank_environment(AT_NODE_0 | {"SLURM_PROCID": "0"}).port}),
        *((alone, vars(ALONE)) for alone in ({}, {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"})),
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
        (SLURM | {"SLURM_NTASKS": "some"}, "SLURM_NTASKS is 'some'"),
        (SLURM, "set MASTER_ADDR to its node"),
    ],
)
def test_contradictions_are_one_sentence(environ, sentence):
    with pytest.raises(UserError, match=sentence):
        rank_environment(environ)


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
