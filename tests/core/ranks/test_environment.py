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


def test_torchrun_tells_rank_nodes_and_store():
    found = rank_environment(TORCHRUN)
    assert (found.rank, found.count, found.local_rank, found.nodes) == (9, 16, 1, 2)
    assert (found.address, found.port, found.agent_store, found.launcher) == ("node0", 29500, True, "torchrun")


def test_srun_tells_rank_and_all_ranks_of_a_job_choose_the_same_port():
    found = rank_environment(SLURM | {"SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1"})
    assert (found.rank, found.count, found.nodes, found.launcher) == (3, 8, 4, "slurm")
    other = rank_environment(SLURM | {"SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1", "SLURM_PROCID": "0"})
    assert found.port == other.port


def test_who_is_on_this_node_is_known_only_where_the_launcher_says_it():
    assert rank_environment(TORCHRUN).on_node == 8
    assert rank_environment({name: TORCHRUN[name] for name in TORCHRUN if name != "LOCAL_WORLD_SIZE"}).on_node == 0
    slurm = SLURM | {"MASTER_ADDR": "node0"}
    assert rank_environment(slurm).on_node == 0
    assert rank_environment(slurm | {"SLURM_NNODES": "1"}).on_node == 8


def test_without_a_launcher_a_process_is_alone():
    assert rank_environment({}) == ALONE
    assert rank_environment({"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}) == ALONE


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
