import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.hardware import nccl_log
from pyperf_suite.hardware.nccl_log import ALGORITHMS, OPERATIONS, PROTOCOLS, Choice, choice_for, choices

# Lines in the forms of public issue reports and of NCCL's own format strings, hosts and addresses shortened.
LOG_2_27 = """\
node1:185302:185302 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>
node1:185302:185302 [0] NCCL INFO NCCL version 2.27.3+cuda12.9
node1:185302:185400 [0] NCCL INFO comm 0x5629 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
node1:185302:185400 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
node1:185303:185401 [1] NCCL INFO Channel 00/0 : 1[1] -> 2[2] via P2P/CUMEM
node1:185302:185400 [0] NCCL INFO Channel 07/0 : 8[0] -> 0[0] [receive] via NET/IB/3/GDRDMA
node1:185302:185400 [0] NCCL INFO Channel 06/0 : 8[0] -> 0[0] [receive] via NET/IB/2/GDRDMA
node1:185302:185400 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
node1:185302:185400 [0] NCCL INFO 16 coll channels, 16 collnet channels, 0 nvls channels, 32 p2p channels, 2 p2p \
channels per peer
node1:185302:185302 [0] NCCL INFO AllReduce: 4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}
node1:185302:185302 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..23}
node1:185302:185302 [0] NCCL INFO AllReduce: 2097152 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}
node1:185302:185302 [0] NCCL INFO AllGather: 515200 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..23}
node1:185302:185302 [0] NCCL INFO Broadcast:    32768 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..0}
node1:185303:185303 [1] NCCL WARN NET/IB : Got completion from peer with status=12
node1:185304:185304 [2] NCCL WARN NET/IB : Got completion from peer with status=12
"""
# By number, with no operation, and the lines of nccl-tests' table among them.
LOG_2_21 = """\
NCCL version 2.21.5+cuda12.4
[0] h100:497888:497888 [0] NCCL INFO 256 Bytes -> Algo 0 proto 0 time 25.229528
[0]     62.05    0.00    0.01      0
[0]          512           128     float     sum      -1[0] h100:497888:497888 [0] NCCL INFO 512 Bytes -> Algo 0 \
proto 1 time 25.259054
[0] h100:497888:497888 [0] NCCL INFO 805306368 Bytes -> Algo 1 proto 2 time 3970.683594
"""


def test_the_choice_for_each_size_is_found():
    assert choice_for(LOG_2_27, "all_reduce", 4096, 8) == Choice("all_reduce", 4096, "RING", "LL", 1)
    assert choice_for(LOG_2_27, "all_reduce", 1 << 20, 8) == Choice("all_reduce", 1 << 20, "RING", "LL", 24)
    assert choice_for(LOG_2_27, "all_reduce", 1 << 21, 8) == Choice("all_reduce", 1 << 21, "NVLS", "SIMPLE", 16)
    assert choice_for(LOG_2_27, "broadcast", 1 << 15, 8) is not None  # sizes may be set flush right
    assert choice_for(LOG_2_27, "all_reduce", 8192, 8) is None
    assert choice_for(LOG_2_27, "reduce", 4096, 8) is None
    assert choice_for(LOG_2_27, "all_gather", 8 * 515_200, 8) == Choice("all_gather", 515_200, "RING", "LL", 24)
    assert choice_for(LOG_2_27, "all_gather", 515_200, 8) is None


def test_older_versions_are_read_by_number_and_fit_any_operation():
    found = [(one.algorithm, one.protocol) for one in choices(LOG_2_21)]
    assert found == [("TREE", "LL"), ("TREE", "LL128"), ("RING", "SIMPLE")]
    assert choice_for(LOG_2_21, "all_reduce", 805306368, 8) == Choice(None, 805306368, "RING", "SIMPLE")
    assert choice_for(LOG_2_21, "all_gather", 512, 8) == Choice(None, 512, "TREE", "LL128")


def test_the_last_choice_stands_lines_that_ran_together_are_both_read_and_unknown_names_are_kept():
    line = "NCCL INFO AllReduce: 64 Bytes -> Algo {} proto LL channel{{Lo..Hi}}={{0..0}}\n"
    both = line.format("TREE") + line.format("RING")
    assert choice_for(both, "all_reduce", 64, 2) == Choice("all_reduce", 64, "RING", "LL", 1)
    half = "AllReduce: 8 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..1}"
    assert len(choices(f"a:1:1 [0] NCCL INFO {half}b:2:2 [0] NCCL INFO {half}")) == 2
    [choice] = choices("NCCL INFO AllGatherV: 8 Bytes -> Algo 9 proto 7 time 1.0")
    assert (choice.operation, choice.algorithm, choice.protocol) == ("AllGatherV", "9", "7")


@pytest.mark.parametrize("text", ["", "\n\n", "nothing of NCCL", "# nThread 1 nGpus 8 minBytes 8\n"])
def test_a_text_without_nccls_lines_has_no_choice(text):
    assert not choices(text)


ANY = st.builds(
    Choice,
    st.sampled_from(sorted(OPERATIONS.values())),
    st.integers(0, 10**18 - 1),
    st.sampled_from(ALGORITHMS),
    st.sampled_from(PROTOCOLS),
    st.integers(1, 64),
)


@given(st.lists(ANY, max_size=20), st.sampled_from(["", "host:1:2 [0] ", "[3]: [default0]:", "2026-01-01 12:00 "]))
def test_every_choice_that_nccl_formats_is_read_back(logged, prefix):
    spelled = {ours: theirs for theirs, ours in OPERATIONS.items()}
    lines = [
        f"{prefix}NCCL INFO {spelled[one.operation]}: {one.size_bytes} Bytes -> Algo {one.algorithm} proto "
        f"{one.protocol} channel{{Lo..Hi}}={{0..{one.channels - 1}}}"
        for one in logged
    ]
    assert choices("\n".join(lines)) == logged


def test_a_process_finds_the_log_that_it_was_started_to_write():
    started_with = nccl_log.environment()
    assert started_with["NCCL_DEBUG"] == "INFO"
    own = nccl_log.own_file(started_with)
    assert own is not None
    assert str(os.getpid()) in own.name
    assert nccl_log.own_file({}) is None
    assert nccl_log.own_file({"NCCL_DEBUG_FILE": "/a/log/of/somebody"}) is None
