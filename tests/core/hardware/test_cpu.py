import os

import pytest

from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.cpu import CPUS, NODES, NumaNode, core_name, read_layout

SYSTEM = "sys/devices/system/cpu"


def cache(core: int, index: int, level: int, kind: str, size: str, shared: str) -> dict[str, str]:
    """The files of one cache of one core."""
    folder = f"{SYSTEM}/cpu{core}/cache/index{index}"
    return {
        f"{folder}/level": f"{level}\n",
        f"{folder}/type": f"{kind}\n",
        f"{folder}/size": f"{size}\n",
        f"{folder}/shared_cpu_list": f"{shared}\n",
    }


def caches_of_core(core: int, siblings: str, sizes: tuple[str, str, str], sharers_of_l3: str) -> dict[str, str]:
    """L1d, L1i, L2 and L3 of a core, as Linux lists them."""
    l1d, l2, l3 = sizes
    return {
        **cache(core, 0, 1, "Data", l1d, siblings),
        **cache(core, 1, 1, "Instruction", "32K", siblings),
        **cache(core, 2, 2, "Unified", l2, siblings),
        **cache(core, 3, 3, "Unified", l3, sharers_of_l3),
    }


def x86_cpuinfo(vendor: str, model: str, flags: str, cores: int) -> str:
    """The parts of /proc/cpuinfo that matter, of an x86 machine."""
    return "\n".join(
        f"processor\t: {core}\nvendor_id\t: {vendor}\nmodel name\t: {model}\nflags\t\t: {flags}\nbugs\t\t:\n"
        for core in range(cores)
    )


# Two sockets of two hyper-threaded cores each: CPUs 0 and 4 are one core, as Intel numbers them.
INTEL_BARE_METAL = {
    "proc/cpuinfo": x86_cpuinfo("GenuineIntel", "Intel(R) Xeon(R) Gold 6330 CPU @ 2.00GHz", "fpu avx2 avx512f", 8),
    f"{SYSTEM}/online": "0-7",
    "sys/devices/system/node/online": "0-1",
    "sys/class/dmi/id/sys_vendor": "Dell Inc.",
    **{
        path: content
        for core in range(8)
        for path, content in caches_of_core(
            core,
            f"{core % 4},{core % 4 + 4}",
            ("48K", "1280K", "43008K"),
            "0-1,4-5" if core % 4 < 2 else "2-3,6-7",
        ).items()
    },
}
# A container on a virtual machine that hides its caches.
CONTAINER_ON_VM = {
    "proc/cpuinfo": x86_cpuinfo("GenuineIntel", "Intel(R) Xeon(R) Processor", "fpu avx2 hypervisor", 8),
    f"{SYSTEM}/online": "0-7",
    "proc/self/cgroup": "0::/\n",
    "sys/fs/cgroup/cpu.max": "250000 100000\n",
}


def test_bare_metal_intel_counts_each_cache_once_though_two_threads_share_it(machine):
    processor = cpu.read_cpu(machine(INTEL_BARE_METAL), affinity=8)
    assert processor.model == "Intel(R) Xeon(R) Gold 6330 CPU @ 2.00GHz"
    assert processor.usable_cores == 8
    assert (processor.l1d_bytes, processor.l2_bytes, processor.l2_total_bytes) == (48 << 10, 1280 << 10, 4 * 1280 << 10)
    assert (processor.l3_bytes, processor.l3_total_bytes) == (43008 << 10, 2 * 43008 << 10)
    assert processor.isa_flags == ("avx2", "avx512f", "fpu")
    assert not processor.virtualised
    assert not processor.caches_assumed


@pytest.mark.parametrize(
    ("name", "model"),
    {
        "AMD EPYC": "AMD EPYC (family 26, model 2)",
        "Intel(R) Xeon(R) CPU @ 2.20GHz": "Intel(R) Xeon(R) CPU @ 2.20GHz (family 26, model 2)",
        "AMD EPYC 9575F 64-Core Processor": "AMD EPYC 9575F 64-Core Processor",
    }.items(),
)
def test_generations_that_a_hypervisor_gives_one_name_differ(machine, name, model):
    information = f"processor\t: 0\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: {name}\n"
    assert cpu.read_cpu(machine({"proc/cpuinfo": information}), affinity=None).model == model


@pytest.mark.parametrize(("quota", "affinity", "usable"), [(275_000, 8, 2), (275_000, 1, 1), (50_000, 8, 1)])
def test_usable_cores_are_the_whole_cores_of_quota_and_affinity_and_at_least_one(machine, quota, affinity, usable):
    found = cpu.read_cpu(machine({**CONTAINER_ON_VM, "sys/fs/cgroup/cpu.max": f"{quota} 100000"}), affinity)
    assert (found.usable_cores, found.virtualised) == (usable, True)


LEVELS = ("SC_LEVEL1_DCACHE_SIZE", "SC_LEVEL2_CACHE_SIZE", "SC_LEVEL3_CACHE_SIZE")


@pytest.mark.parametrize(
    ("files", "sysconf", "expected"),
    [
        (CONTAINER_ON_VM, (65536, 524288, 0), (65536, 524288, 0, False)),
        (CONTAINER_ON_VM, (0, 0, 0), (*cpu.ASSUMED_BYTES.values(), True)),
    ],
    ids=["C library", "assumed"],
)
def test_caches_the_kernel_hides_are_read_elsewhere_or_assumed(machine, monkeypatch, files, sysconf, expected):
    sizes = dict(zip(LEVELS, sysconf, strict=True))
    monkeypatch.setattr(os, "sysconf", lambda name: sizes.get(name, -1))
    read = cpu.read_cpu(machine(files), affinity=8)
    assert (read.l1d_bytes, read.l2_bytes, read.l3_bytes, read.caches_assumed) == expected
    assert read.l2_total_bytes == 8 * read.l2_bytes


def test_an_empty_machine_or_one_of_bytes_that_are_no_text_is_described_without_raising(machine):
    found = cpu.read_cpu(machine({}), affinity=None)
    assert found.model
    assert found.usable_cores >= 1
    assert found.l2_bytes > 0
    files = machine({"proc/cpuinfo": "model name\t: \udcff\udcfe CPU\n", f"{SYSTEM}/online": "\udc80"})
    assert "CPU" in cpu.read_cpu(files, affinity=None).model
    layout = read_layout(machine({}))
    assert (layout.sockets, layout.cores, layout.nodes, layout.allowed_cpus) == (0, 0, (), frozenset())


@pytest.mark.parametrize(
    ("implementer", "part", "name"),
    [
        ("0x41", "0xd0c", "Arm Neoverse-N1"),
        ("0xc0", "0xac3", "Ampere Ampere-1"),
        ("0x41", "0xfff", "Arm part 0xfff"),
        ("0x99", "0x1", "implementer 0x99 part 0x1"),
        (None, "0xd0c", None),
        ("0x41", "core", None),
    ],
)
def test_arm_cores_are_named_by_implementer_and_part(implementer, part, name):
    assert core_name(implementer, part) == name


def two_sockets(allowed: str = "0-7", memory: str = "0-1") -> dict[str, str]:
    """Two sockets of two cores with two threads each: thread n + 4 is the sibling of n."""
    files = {
        f"{CPUS}/online": "0-7",
        "proc/self/status": f"Name:\tpython\nCpus_allowed:\tff\n"
        f"Cpus_allowed_list:\t{allowed}\nMems_allowed_list:\t{memory}\n",
    }
    for core in range(8):
        files[f"{CPUS}/cpu{core}/topology/physical_package_id"] = str(core % 4 // 2)
        files[f"{CPUS}/cpu{core}/topology/core_id"] = str(core % 2)
    for node in range(2):
        folder = f"{NODES}/node{node}"
        files[f"{folder}/cpulist"] = f"{2 * node}-{2 * node + 1},{2 * node + 4}-{2 * node + 5}"
        files[f"{folder}/meminfo"] = f"Node {node} MemTotal:       {node + 1}024 kB\nNode {node} MemFree: 1 kB"
        files[f"{folder}/distance"] = "10 21" if node == 0 else "21 10"
    return files


def test_two_sockets_are_known_by_their_cores_and_threads(machine):
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


VENDOR, PRODUCT = "sys/class/dmi/id/sys_vendor", "sys/class/dmi/id/product_name"
GUEST = frozenset({"avx2", "hypervisor"})
METAL = frozenset({"avx2"})


@pytest.mark.parametrize(
    ("contents", "flags", "name"),
    [
        ({VENDOR: "QEMU", PRODUCT: "Standard PC (Q35 + ICH9, 2009)"}, GUEST, "qemu"),
        ({VENDOR: "Microsoft Corporation", PRODUCT: "Virtual Machine"}, GUEST, "hyper-v"),
        ({VENDOR: "Google", PRODUCT: "Google Compute Engine"}, GUEST, "kvm"),
        ({VENDOR: "Amazon EC2", PRODUCT: "c5.9xlarge"}, GUEST, "nitro"),
        ({VENDOR: "Amazon EC2", PRODUCT: "c5.metal"}, METAL, None),
        ({VENDOR: "Amazon EC2", PRODUCT: "c7g.xlarge"}, frozenset({"asimd"}), None),
        ({VENDOR: "Dell Inc.", PRODUCT: "PowerEdge R750"}, METAL, None),
        ({"sys/hypervisor/type": "xen"}, GUEST, "xen"),
        ({"proc/device-tree/hypervisor/compatible": "linux,kvm\0kvm\0"}, frozenset({"asimd"}), "kvm"),
        ({}, GUEST, "unnamed"),
        ({}, METAL, None),
        ({}, frozenset(), None),
    ],
)
def test_the_hypervisor_is_named_only_where_there_is_one(machine, contents, flags, name):
    assert cpu.hypervisor(machine(contents), flags) == name


@pytest.mark.parametrize(
    ("contents", "kind"),
    [
        ({".dockerenv": ""}, "docker"),
        ({"run/.containerenv": 'engine="podman"'}, "podman"),
        ({"proc/self/cgroup": "0::/kubepods.slice/kubepods-pod1.slice"}, "kubepods"),
        ({"proc/self/cgroup": "0::/user.slice"}, None),
        ({}, None),
    ],
)
def test_a_container_is_known_by_its_marks(machine, contents, kind):
    assert cpu.container(machine(contents)) == kind
