"""Sockets, cores and memory nodes as Linux tells them, and which of them a process may use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.hardware.cpu import CPUS, NODES, NumaNode, read_layout
from pyperf_suite.hardware.kernel_files import cpu_list, parse_cpu_list


def two_sockets(allowed: str = "0-7", memory: str = "0-1") -> dict[str, str]:
    """Two sockets of two cores with two threads each: thread n + 4 is the sibling of n."""
    files = {
        f"{CPUS}/online": "0-7",
        "proc/self/status": f"Name:\tpython\nCpus_allowed:\tff\n"
        f"Cpus_allowed_list:\t{allowed}\nMems_allowed_list:\t{memory}\n",
    }
    for cpu in range(8):
        files[f"{CPUS}/cpu{cpu}/topology/physical_package_id"] = str(cpu % 4 // 2)
        files[f"{CPUS}/cpu{cpu}/topology/core_id"] = str(cpu % 2)
    for node in range(2):
        folder = f"{NODES}/node{node}"
        files[f"{folder}/cpulist"] = f"{2 * node}-{2 * node + 1},{2 * node + 4}-{2 * node + 5}"
        files[f"{folder}/meminfo"] = f"Node {node} MemTotal:       {node + 1}024 kB\nNode {node} MemFree: 1 kB"
        files[f"{folder}/distance"] = "10 21" if node == 0 else "21 10"
    return files


def test_two_sockets_are_told_from_their_cores_and_threads(machine):
    layout = read_layout(machine(two_sockets()))
    assert (layout.sockets, layout.cores, len(layout.online)) == (2, 4, 8)
    assert layout.nodes == (
        NumaNode(0, frozenset({0, 1, 4, 5}), 1024 * 1024, (10, 21)),
        NumaNode(1, frozenset({2, 3, 6, 7}), 2024 * 1024, (21, 10)),
    )


@pytest.mark.parametrize(("allowed", "nodes"), [("0-7", (0, 1)), ("2,6", (1,)), ("0-1", (0,))])
def test_the_nodes_of_a_process_are_those_of_its_cpus(machine, allowed, nodes):
    layout = read_layout(machine(two_sockets(allowed, "1")))
    assert layout.nodes_of(layout.allowed_cpus) == nodes
    assert layout.allowed_nodes == {1}


def test_cpus_that_are_allowed_but_not_there_do_not_count(machine):
    assert read_layout(machine(two_sockets("0-1023"))).allowed_cpus == frozenset(range(8))


def test_a_node_with_neither_cpus_nor_memory_is_none(machine):
    absent = {f"{NODES}/node2/cpulist": "", f"{NODES}/node2/meminfo": "Node 2 MemTotal: 0 kB"}
    assert len(read_layout(machine(two_sockets() | absent)).nodes) == 2


def test_a_machine_without_these_files_tells_nothing(machine):
    layout = read_layout(machine({}))
    assert (layout.sockets, layout.cores, layout.nodes, layout.allowed_cpus) == (0, 0, (), frozenset())


@given(st.frozensets(st.integers(0, 40)))
def test_a_list_of_cpus_is_written_as_the_kernel_reads_it(cpus):
    assert parse_cpu_list(cpu_list(cpus)) == cpus
    assert cpu_list({3, 1, 2, 8}) == "1-3,8"
