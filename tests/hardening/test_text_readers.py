"""Whatever text stands where a reader expects its own form, it reads it or says no in the way that it documents."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pyperf_suite.commands.layout import _link
from pyperf_suite.commands.options import Age
from pyperf_suite.errors import UserError
from pyperf_suite.hardware import cgroup, nccl_log, pcie, topology, virtualisation
from pyperf_suite.hardware.catalogue import capability_of, find_gpu
from pyperf_suite.hardware.cpu import read_cpu
from pyperf_suite.hardware.cpu_layout import read_layout
from pyperf_suite.hardware.kernel_files import KernelFiles, parse_bytes, parse_cpu_list, parse_integer
from pyperf_suite.hardware.links import network
from pyperf_suite.hardware.pcie import PcieLink
from pyperf_suite.hardware.state import kernel_state
from pyperf_suite.history.pairs.variants import parse_variant
from pyperf_suite.history.thresholds import parse_share
from pyperf_suite.kernels import disassembly
from pyperf_suite.laws.attention.counted import Blocks
from pyperf_suite.laws.matmul.tiling import Schedule, Tile
from pyperf_suite.probes.alignment.sizes import Base
from pyperf_suite.probes.calibration.design import AttentionShape
from pyperf_suite.probes.collectives.training import Training
from pyperf_suite.ranks.launch import rank_environment
from pyperf_suite.spec.axes import Flag, Shape, Sizes
from pyperf_suite.workloads.attention.kernel_names import flash_kernel
from pyperf_suite.workloads.matmul import kernel_names
from pyperf_suite.workloads.training.optimizer_update import TensorSet
from pyperf_suite.workloads.training.shape import Checkpointing

SEEDS = st.integers(0, 2**32)
# A hundred inputs an example: few examples do, unless a profile asks for other ones in each run.
SOME = settings(max_examples=3, phases=[Phase.generate]) if settings().derandomize else settings()
TOPOLOGIES = Path(__file__).parent.parent / "hardware" / "topologies"
MODEL = "layers=12,hidden=768,ffn=3072,heads=12,vocab=50257,seq=1024,compute_ms=90"


@dataclass(frozen=True)
class Reader:
    """One reader: good texts to begin from, and the exceptions by which it says no."""

    name: str
    read: Callable[[str], Any]
    good: tuple[str, ...]
    refusals: tuple[type[Exception], ...] = (UserError,)


class KeptFiles(KernelFiles):
    """Kernel files kept in memory, as hypothesis would write a hundred thousand of them."""

    def __init__(self, contents: dict[str, str]) -> None:
        super().__init__()
        object.__setattr__(self, "contents", contents)

    def text(self, path: str) -> str | None:
        content = self.contents.get(path)
        return None if content is None else content.strip("\0 \n\t") or None

    def matching(self, pattern: str) -> list[str]:
        depth = pattern.count("/") + 1
        from fnmatch import fnmatchcase

        prefixes = {"/".join(path.split("/")[:depth]) for path in self.contents}
        return sorted(path for path in prefixes if path.count("/") + 1 == depth and fnmatchcase(path, pattern))

    def exists(self, path: str) -> bool:
        return any(each == path or each.startswith(f"{path}/") for each in self.contents)


CPU_FOLDER, NODE_FOLDER = "sys/devices/system/cpu", "sys/devices/system/node"
DEVICE_FOLDER = "sys/bus/pci/devices/0000:17:00.0"
MACHINE = {
    "proc/cpuinfo": "processor\t: 0\nmodel name\t: A CPU @ 2.5GHz\nflags\t\t: fpu avx2 hypervisor\n\nprocessor : 1\n",
    "proc/self/cgroup": "0::/a/b\n4:memory:/a\n3:cpu,cpuacct:/a/../b\n",
    "proc/self/status": "Name:\tpython\nCpus_allowed_list:\t0-1\nMems_allowed_list:\t0\n",
    "sys/fs/cgroup/a/b/cpu.max": "150000 100000",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
    "sys/fs/cgroup/a/b/memory.max": "1073741824",
    "sys/fs/cgroup/a/b/memory.current": "73741824",
    "sys/fs/cgroup/a/b/memory.stat": "anon 12\ninactive_file 4096\n",
    f"{CPU_FOLDER}/online": "0-1",
    f"{CPU_FOLDER}/cpu0/topology/core_id": "0",
    f"{CPU_FOLDER}/cpu0/topology/physical_package_id": "0",
    f"{CPU_FOLDER}/cpu0/cpufreq/scaling_governor": "performance",
    f"{CPU_FOLDER}/intel_pstate/no_turbo": "0",
    f"{CPU_FOLDER}/cpu0/cache/index2/level": "2",
    f"{CPU_FOLDER}/cpu0/cache/index2/size": "2048K",
    f"{CPU_FOLDER}/cpu0/cache/index2/type": "Unified",
    f"{CPU_FOLDER}/cpu0/cache/index2/shared_cpu_list": "0-1",
    f"{NODE_FOLDER}/online": "0",
    f"{NODE_FOLDER}/node0/cpulist": "0-1",
    f"{NODE_FOLDER}/node0/meminfo": "Node 0 MemTotal:  16000000 kB\n",
    f"{NODE_FOLDER}/node0/distance": "10",
    f"{DEVICE_FOLDER}/class": "0x030200",
    f"{DEVICE_FOLDER}/current_link_speed": "32.0 GT/s PCIe",
    f"{DEVICE_FOLDER}/current_link_width": "16",
    f"{DEVICE_FOLDER}/max_link_speed": "32.0 GT/s PCIe",
    f"{DEVICE_FOLDER}/max_link_width": "16",
    f"{DEVICE_FOLDER}/numa_node": "0",
    "sys/class/dmi/id/sys_vendor": "QEMU",
    "sys/class/dmi/id/product_name": "KVM",
}
SEPARATOR = "\n=====\n"


def machine_of(text: str) -> None:
    """Everything that the suite reads below /proc and /sys, each file a part of the text."""
    files = KeptFiles(dict(zip(MACHINE, text.split(SEPARATOR), strict=False)))
    flags = frozenset({"hypervisor"})
    read_cpu(files, None)
    read_layout(files)
    json.dumps(kernel_state(files, flags))
    for each in pcie.devices(files):
        assert pcie.PcieDevice.from_json(each.to_json()) == each
    cgroup.memory_available_bytes(files)
    virtualisation.container(files)
    virtualisation.hypervisor(files, flags)


def environment_of(text: str) -> None:
    """The text's lines as the variables that a launcher sets."""
    variables = (line.partition("=") for line in text.split("\n"))
    rank_environment({name: value for name, _, value in variables})


def topology_of(text: str) -> None:
    graph = topology.parse(text)
    assert topology.LinkGraph.from_json(json.loads(json.dumps(graph.to_json()))).paths == graph.paths
    graph.expected_gb_per_s((9, 0))
    for gpu in graph.gpus:
        graph.nearest_nics(gpu)


def log_of(text: str) -> None:
    log = nccl_log.parse(text)
    log.choice("all_reduce", 1024, 2)
    [str(choice) for choice in log.choices]


LOG = """\
node:1:2 [0] NCCL INFO NCCL version 2.28.3+cuda13.0
node:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
node:1:2 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/3/GDRDMA
node:1:2 [0] NCCL INFO comm 0x55 rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0
node:1:2 [0] NCCL INFO 24 coll channels, 16 collnet channels, 0 nvls channels, 32 p2p channels, 4 p2p channels per peer
node:1:2 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}
node:1:2 [0] NCCL INFO 1024 Bytes -> Algo 1 proto 0 time 9.6
node:1:2 [0] NCCL WARN Cuda failure 'peer access is not supported'
"""
LISTING = """\
Resource usage:
 Function kernel:
  REG:96 STACK:0 SHARED:1024 LOCAL:0 CONSTANT[0]:544 TEXTURE:0 SURFACE:0 SAMPLER:0
	code for sm_90a
		Function : kernel
        /*0000*/                   LDC R1, c[0x0][0x28] ;     /* 0x00000a00ff017b82 */
        /*0010*/              @!P0 HMMA.16816.F32.BF16 R4, R4, R8, R12 ;
"""
NAMES = (
    "ampere_bf16_s16816gemm_bf16_128x256_sliced1x2_ldg8_f2f_stages_64x3_nn",
    "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8",
    "cutlass3x_sm90_tensorop_s64x128x16gemm_f16_f16_f32_void_f16_128x256x64_2x1x1_0_tnn_align8_warpspecialized",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cgasize1x2x1_stage4_warpgroupsize1x1x1_tensor64x128x16",
    "nvjet_sm90_tst_128x256_64x4_2x1_2cta_v_bz_coopA_bias_splitK_TNT",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float>",
)
TRAITS = "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)64, (int)128, 128, 4, false>>"
ENVIRONMENTS = (
    "RANK=1\nWORLD_SIZE=4\nLOCAL_RANK=1\nLOCAL_WORLD_SIZE=2\nGROUP_WORLD_SIZE=2\nMASTER_ADDR=localhost\n"
    "MASTER_PORT=29500\nTORCHELASTIC_RUN_ID=x\nTORCHELASTIC_USE_AGENT_STORE=True\nTORCHELASTIC_RESTART_COUNT=0",
    "SLURM_PROCID=1\nSLURM_NTASKS=4\nSLURM_LOCALID=1\nSLURM_NNODES=2\nSLURM_JOB_ID=77\nSLURM_LAUNCH_NODE_IPADDR=10.0.0.1",
)

ANY_OF_VALUE = (UserError, ValueError)
READERS: Iterable[Reader] = (
    Reader("topology", topology_of, tuple(path.read_text() for path in sorted(TOPOLOGIES.glob("*.txt")))),
    Reader("nccl_log", log_of, (LOG,), ()),
    Reader("matmul_kernel_name", lambda text: kernel_names.product_kernel([text]), NAMES, ()),
    Reader("attention_kernel_name", lambda text: flash_kernel([text]), (TRAITS,), ()),
    Reader("disassembly", lambda text: disassembly.parse(text, "kernel"), (LISTING,), (ValueError,)),
    Reader("kernel_files", machine_of, (SEPARATOR.join(MACHINE.values()),), ()),
    Reader("rank_environment", environment_of, ENVIRONMENTS),
    Reader("tile", Tile.parse, ("128x256x64:s4:c2", "64x64x256")),
    Reader("schedule", Schedule.parse, ("split_k(4)@2", "data_parallel@1")),
    Reader("blocks", Blocks.parse, ("128x64:s3:w8",)),
    Reader("shape", Shape.parse, ("512x4096x1024",)),
    Reader("attention_shape", AttentionShape.parse, ("1x32x8x128x4096",)),
    Reader("base", Base.parse, ("fprop:256x1024x1024",)),
    Reader("tensor_set", TensorSet.parse, ("400x256x256",)),
    Reader("checkpointing", Checkpointing.parse, ("every:2", "selective")),
    Reader("sizes", lambda text: Sizes.parse(text).ladder(), ("1KiB..1GiB:4", "64KiB")),
    Reader("flag", Flag.parse, ("true",)),
    Reader("training", lambda text: str(Training.parse(text)), (MODEL,)),
    Reader("pcie_link", PcieLink.parse, ("gen 4 x16",), (ValueError,)),
    Reader("network", lambda text: network(text).gb_per_s * 1e9, ("400 Gbps", "HDR")),
    Reader("link", _link, ("NVLink3", "300GB/s")),
    Reader("gpu_name", find_gpu, ("NVIDIA H100 80GB HBM3", "A100")),
    Reader("gpu_capability", capability_of, ("NVIDIA H100 80GB HBM3", "GeForce RTX 4090"), ()),
    Reader("variant", parse_variant, ("tile=64x64x256,implementation=native",)),
    Reader("share", parse_share, ("2.5 %", "0.01"), (ValueError,)),
    Reader("age", lambda text: Age().convert(text, None, None), ("90d",), (click.UsageError,)),
    Reader("size_in_kernel_files", parse_bytes, ("491520 KB",), ()),
    Reader("cpu_list", parse_cpu_list, ("0-3,8,10-11",), ()),
    Reader("whole_number", parse_integer, ("-12",), ()),
)


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
@given(seed=SEEDS)
@SOME
def test_any_text_is_read_or_refused_as_documented(reader, each_spoiled, seed):
    each_spoiled(seed, reader.good, reader.read, reader.refusals)


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_the_good_texts_are_read(reader):
    for text in reader.good:
        reader.read(text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(
            (name, text)
            for name in ("shape", "attention_shape")
            for text in ("1x1²024x1", "--1x1x1", f"1x1x{'9' * 5000}")
        ),
        ("base", f"fprop:1x1x{'9' * 5000}"),
        ("tile", f"64x64x{'9' * 5000}"),
        ("schedule", f"split_k(2)@{'9' * 5000}"),
        ("blocks", f"64x{'9' * 5000}"),
        ("network", f"{'9' * 400} Gbps"),
        ("attention_kernel_name", TRAITS.replace("128", "9" * 5000)),
        ("attention_kernel_name", TRAITS.replace("128", "0")),
    ],
)
def test_what_once_ended_in_a_traceback_is_refused(name, text):
    reader = next(reader for reader in READERS if reader.name == name)
    if reader.refusals:
        with pytest.raises(reader.refusals) as refused:
            reader.read(text)
        assert len(str(refused.value)) < 300
    else:
        assert reader.read(text) is None
