import contextlib
import functools
import io
import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pyperf_suite.errors import UserError
from pyperf_suite.findings.axes import Flag, Shape, Sizes, overrides_for, parse_overrides, replace_axes
from pyperf_suite.hardware import cpu, links, memory, topology
from pyperf_suite.hardware.catalogue import capability_of, find_gpu
from pyperf_suite.hardware.cpu import read_cpu, read_layout
from pyperf_suite.hardware.devices import Device
from pyperf_suite.hardware.kernel_files import KernelFiles, parse_bytes, parse_cpu_list, parse_integer
from pyperf_suite.hardware.links import PcieLink
from pyperf_suite.hardware.machine import kernel_state
from pyperf_suite.kernels import disassembly
from pyperf_suite.laws.tiled_attention import Blocks
from pyperf_suite.laws.tiling import Schedule, Tile
from pyperf_suite.planner.commands.layout import _link
from pyperf_suite.planner.laws.calibration import load_calibration, shipped_path
from pyperf_suite.planner.laws.collectives import network_of
from pyperf_suite.planner.laws.gemm import gemm_time
from pyperf_suite.planner.laws.prices import check_form
from pyperf_suite.planner.model_config import model_config, read_model_config
from pyperf_suite.planner.probes.calibration import AttentionSizes
from pyperf_suite.probes import all_probes
from pyperf_suite.probes.alignment import Base
from pyperf_suite.probes.collectives.verdict import TrainingSizes
from pyperf_suite.ranks.launch import rank_environment
from pyperf_suite.record.journal import read_journal
from pyperf_suite.record.record import Record
from pyperf_suite.regressions.pairs.arms import parse_variant
from pyperf_suite.regressions.selfcheck import COMPARISONS, MANIFEST, Comparison, open_selfcheck
from pyperf_suite.regressions.stored.series import summarise_journal
from pyperf_suite.regressions.stored.store import Store
from pyperf_suite.regressions.thresholds import load_thresholds, parse_share
from pyperf_suite.runner.results import read_run
from pyperf_suite.workloads import kernel_names
from pyperf_suite.workloads.kernel_names import flash_kernel
from pyperf_suite.workloads.training import Checkpointing
from pyperf_suite.workloads.training.optimizer import TensorSet
from tests.planner.test_model_config import PUBLISHED

SEEDS = st.integers(0, 2**32)
# A hundred inputs an example: few examples do, unless a profile asks for other ones in each run.
TWO_EXAMPLES = settings(max_examples=2, phases=[Phase.generate]) if settings().derandomize else settings()
ROOT = Path(__file__).parents[2]
TOPOLOGIES = sorted((ROOT / "tests/core/hardware/topologies").glob("*.txt"))
RESULTS = ROOT / "bench_results"
CPU = Device("cpu")


@dataclass(frozen=True)
class Reader:
    """One reader: good forms to begin from, or what makes them, and the exceptions by which it says no.

    With `file` it is given the path of a file of that name with spoiled bytes in it, else the spoiled value itself.
    """

    name: str
    read: Callable[[Any], Any]
    good: Sequence[Any] | Callable[[], Sequence[Any]]
    refusals: tuple[type[Exception], ...] = (UserError,)
    file: str = ""

    def forms(self) -> Sequence[Any]:
        return self.good() if callable(self.good) else self.good


# Texts.


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
    for each in links.devices(files):
        assert links.PcieDevice.from_json(each.to_json()) == each
    memory.memory_available_bytes(files)
    cpu.container(files)
    cpu.hypervisor(files, flags)


def environment_of(text: str) -> None:
    """The text's lines as the variables that a launcher sets."""
    variables = (line.partition("=") for line in text.split("\n"))
    rank_environment({name: value for name, _, value in variables})


def topology_of(text: str) -> None:
    graph = topology.parse(text)
    assert topology.LinkGraph.from_json(json.loads(json.dumps(graph.to_json()))).paths == graph.paths
    [path.peak_gb_per_s((9, 0)) for path in graph.paths.values()]
    for gpu in graph.gpus:
        graph.nearest_nics(gpu)


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
    "SLURM_STEP_ID=0\nSLURM_PROCID=1\nSLURM_NTASKS=4\nSLURM_LOCALID=1\nSLURM_NNODES=2\nSLURM_JOB_ID=77\nSLURM_LAUNCH_NODE_IPADDR=10.0.0.1",
)
CONFIGS = [config for config, _ in PUBLISHED.values()]
COMPARISON = {
    "shift": 0.0,
    "number": 1,
    "probe": "tile_wave",
    "case_id": "0" * 16,
    "label": "matmul[native m=1]",
    "verdict": "equivalent",
    "ratio": 1.01,
    "seconds": 2.5,
    "log_ratios": [0.01, -0.01],
    "commit": "a" * 40,
    "started_at": "2026-01-01T00:00:00+00:00",
    "machine": {"load": 0.5},
}


def shortened(value: Any) -> Any:
    """A record without most of its samples, so that most of what is spoiled is something else."""
    if isinstance(value, list):
        return [shortened(each) for each in value[:4]]
    return {key: shortened(each) for key, each in value.items()} if isinstance(value, dict) else value


@functools.cache
def real_records() -> list[dict[str, Any]]:
    """The first record of each probe and outcome among the runs that the checkout has."""
    by_outcome: dict[tuple[str, str], dict[str, Any]] = {}
    for path in sorted(RESULTS.glob("*/*/records.jsonl")):
        for line in path.read_bytes().splitlines():
            record = json.loads(line)
            by_outcome.setdefault((record["probe"], record["outcome"]), shortened(record))
    if not by_outcome:
        pytest.skip(f"there is no record in {RESULTS} to begin from")
    return list(by_outcome.values())


def use_record(value: Any) -> None:
    """Read it, and do with it what the runner and the history do before any probe looks at it."""
    record = Record.from_json(value)
    assert hash((record.probe, record.case_id, record.process)) is not None
    if record.outcome == "ok" and record.kind != "static":
        assert record.seconds > 0
        assert len(record.kept_seconds) <= len(record.metrics["time"].samples)
    summarise_journal(io.BytesIO(json.dumps(value).encode() + b"\n"), "a-machine")
    record.parsed_case()


def use_config(value: Any) -> None:
    found = model_config(value if isinstance(value, dict) else {}, "config.json")
    assert 0 < found.dimensions.parameters < 10**19


# Files.

THRESHOLDS = b"""\
[tool.pyperf_suite.regressions]
margin = "1 %"

[tool.pyperf_suite.regressions.margins]
"tile_wave" = "3 %"
"matmul[native * dtype=bfloat16*]" = 0.02
"""
AXES = (
    *(
        "tile=64x64x256,32x32x32",
        "workers=1,2",
        "size=1KiB..1GiB:4",
        "tile_wave.k=1024",
        "head_dim=64,80",
        "op=all_reduce",
    ),
    *("base=fprop:256x1024x1024", "schedule=data_parallel,stream_k", "checkpointing=every:2", "tensors=400x256x256"),
)
MANIFEST_OF_A_RUN = {"run_id": "x", "plan_id": "0" * 16, "probes": ["a"], "profile": "quick", "cases": 3}
MANIFEST_OF_A_SELFCHECK = {"schema_version": 1, "shifts": [0.0], "seed": 0}


def encoded(*lines: Any) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def journals() -> list[bytes]:
    """Three records as a run keeps them, one of them failed."""
    ok = [record for record in real_records() if record["outcome"] == "ok"][:2]
    failed = ok[0] | {"outcome": "failed", "reason": "a fuse blew", "metrics": {}}
    return [encoded(*ok, failed)]


def use_journal(path: Path) -> None:
    summary = summarise_journal(io.BytesIO(path.read_bytes()), "a-machine")
    assert max(map(len, [*summary.damage, summary.torn])) < 1000
    read_journal(path)


def use_selfcheck(path: Path) -> None:
    content = path.read_bytes()
    is_manifest = content.startswith(b'{"sch')
    path.with_name(MANIFEST).write_bytes(content if is_manifest else encoded(MANIFEST_OF_A_SELFCHECK))
    assert open_selfcheck(path.parent).false_alarms is not None


def use_axes(text: str) -> None:
    overrides = parse_overrides([text])
    for name, own in axes_by_probe().items():
        with contextlib.suppress(UserError):
            replace_axes(own, overrides_for(name, overrides))


@functools.cache
def axes_by_probe() -> dict[str, Any]:
    return {probe.name: probe.axes("quick", CPU) for probe in all_probes() if probe.name != "topology"}


BLOCK = "gemm_bf16.trtllm"


@functools.cache
def shipped() -> tuple[Any, dict[str, bytes]]:
    """The header and the arrays of one block."""
    with zipfile.ZipFile(shipped_path("H200 SXM")) as archive:
        header = json.loads(archive.read("header.json"))
        header["blocks"] = {BLOCK: header["blocks"][BLOCK]}
        return header, {name: archive.read(name) for name in archive.namelist() if name.startswith(f"{BLOCK}/")}


def saved(header: Any, arrays: dict[str, bytes]) -> io.BytesIO:
    """A calibration's file, whole as an archive whatever is in it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, content in arrays.items():
            archive.writestr(name, content)
        archive.writestr("header.json", json.dumps(header))
    file.seek(0)
    return file


def use_calibration(source: Any) -> None:
    calibration = load_calibration(source)
    check_form(calibration, Path("own.npz"))
    assert np.all(gemm_time(calibration, np.array([1, 4096]), 4096, 4096).seconds > 0)


def use_array(content: bytes) -> None:
    header, arrays = shipped()
    names = list(arrays)
    name = next((name for name in names if arrays[name] == content), names[len(content) % len(names)])
    use_calibration(saved(header, arrays | {name: content}))


READERS = (
    Reader("topology", topology_of, tuple(path.read_text() for path in TOPOLOGIES)),
    Reader("matmul_kernel_name", lambda text: kernel_names.product_kernel([text]), NAMES, ()),
    Reader("attention_kernel_name", lambda text: flash_kernel([text]), (TRAITS,), ()),
    Reader("disassembly", lambda text: disassembly.parse(text, "kernel"), (LISTING,), (ValueError,)),
    Reader("kernel_files", machine_of, (SEPARATOR.join(MACHINE.values()),), ()),
    Reader("rank_environment", environment_of, ENVIRONMENTS),
    Reader("tile", Tile.parse, ("128x256x64:s4:c2", "64x64x256")),
    Reader("schedule", Schedule.parse, ("split_k(4)@2", "data_parallel@1")),
    Reader("blocks", Blocks.parse, ("128x64:s3:w8",)),
    Reader("shape", Shape.parse, ("512x4096x1024",)),
    Reader("attention_shape", AttentionSizes.parse, ("1x32x8x128x4096",)),
    Reader("base", Base.parse, ("fprop:256x1024x1024",)),
    Reader("tensor_set", TensorSet.parse, ("400x256x256",)),
    Reader("checkpointing", Checkpointing.parse, ("every:2", "selective")),
    Reader("sizes", lambda text: Sizes.parse(text).ladder(), ("1KiB..1GiB:4", "64KiB")),
    Reader("flag", Flag.parse, ("true",)),
    Reader(
        "training",
        lambda text: str(TrainingSizes.parse(text)),
        ("layers=12,hidden=768,ffn=3072,heads=12,vocab=50257,seq=1024,compute_ms=90",),
    ),
    Reader("pcie_link", PcieLink.parse, ("gen 4 x16",), (ValueError,)),
    Reader("network", network_of, ("400 Gbps", "HDR", "1GB:180GB/s")),
    Reader("link", _link, ("NVLink3", "300GB/s")),
    Reader("gpu_name", find_gpu, ("NVIDIA H100 80GB HBM3", "A100")),
    Reader("gpu_capability", capability_of, ("NVIDIA H100 80GB HBM3", "GeForce RTX 4090"), ()),
    Reader("variant", parse_variant, ("tile=64x64x256,implementation=native",)),
    Reader("share", parse_share, ("2.5 %", "0.01"), (ValueError,)),
    Reader("size_in_kernel_files", parse_bytes, ("491520 KB",), ()),
    Reader("cpu_list", parse_cpu_list, ("0-3,8,10-11",), ()),
    Reader("whole_number", parse_integer, ("-12",), ()),
    Reader("record", use_record, real_records),
    Reader("model_configuration", use_config, CONFIGS),
    Reader("comparison", Comparison.from_json, (COMPARISON,), (ValueError,)),
    Reader("axis", use_axes, AXES),
    Reader("calibration_header", lambda header: use_calibration(saved(header, shipped()[1])), lambda: [shipped()[0]]),
    Reader("calibration_array", use_array, lambda: list(shipped()[1].values())),
    Reader("calibration", use_calibration, lambda: [saved(*shipped()).getvalue()], file="own.npz"),
    Reader("journal", use_journal, journals, file="records.jsonl"),
    Reader("manifest", lambda path: read_run(path.parent), [encoded(MANIFEST_OF_A_RUN)], file="run.json"),
    Reader(
        "selfcheck",
        use_selfcheck,
        [encoded(MANIFEST_OF_A_SELFCHECK), encoded(COMPARISON, COMPARISON)],
        file=COMPARISONS,
    ),
    Reader("thresholds", lambda path: load_thresholds(path.parent), (THRESHOLDS,), file="pyproject.toml"),
    Reader("configuration_file", read_model_config, [encoded(CONFIGS[0])], file="config.json"),
)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.mark.filterwarnings("ignore::pyperf_suite.errors.DamagedJournal")
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
@given(seed=SEEDS)
@TWO_EXAMPLES
def test_any_spoiled_form_is_read_or_refused_as_documented(reader, each_spoiled, place, seed):
    def read_file(content):
        (place / reader.file).write_bytes(content)
        reader.read(place / reader.file)

    each_spoiled(seed, reader.forms(), read_file if reader.file else reader.read, reader.refusals)


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_the_good_forms_are_read(reader, tmp_path):
    for form in reader.forms():
        if reader.file:
            (tmp_path / reader.file).write_bytes(form)
        reader.read(tmp_path / reader.file if reader.file else form)


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


# Cached files of a run are made anew, whatever is in their place.


def values_in(results: Path) -> list[float]:
    return [value for series in Store(results).series() for value in series.values]


def test_a_summary_of_any_bytes_is_made_anew(tmp_path, monkeypatch, each_spoiled):
    monkeypatch.setenv("PYPERF_CACHE_DIR", str(tmp_path / "cache"))
    results = tmp_path / "results"
    run = results / "a-machine" / "20260101T000000Z-0001"
    run.mkdir(parents=True)
    (run / "records.jsonl").write_bytes(journals()[0].splitlines(keepends=True)[0])
    expected = values_in(results)
    (kept,) = (tmp_path / "cache" / "history").glob("*.json")

    def read(content):
        kept.write_bytes(content)
        assert values_in(results) == expected != []

    each_spoiled(1, (kept.read_bytes(),), read, ())
