import copy
import csv
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware import catalogue
from pyperf_suite.hardware.catalogue import DTYPES, GpuSpec, all_gpus, capability_of, find_gpu
from pyperf_suite.hardware.links import nvlink_of, pcie_of, peak_of
from pyperf_suite.kernels import attention_defaults, gemm_sm80, gemm_sm90, matmul, static
from pyperf_suite.kernels.occupancy import occupancy

every_gpu = pytest.mark.parametrize("gpu", all_gpus(), ids=lambda gpu: gpu.slug)

# FMA a multiprocessor does in a clock, by its maker's architecture whitepapers; fp32 lanes and 16-bit tensor cores.
FMA_PER_CLOCK = {
    "Pascal": ({64}, {128}),
    "Volta": ({64}, {512}),
    "Turing": ({64}, {256, 512}),
    "Ampere": ({64, 128}, {256, 512, 1024}),
    "Ada": ({128}, {256, 512}),
    "Hopper": ({128}, {512, 2048}),
    "Blackwell": ({128}, {256, 512, 4096}),
    "Blackwell Ultra": ({128}, {4096}),
    "CDNA1": ({64}, {512}),
    "CDNA2": ({64}, {512}),
    "CDNA3": ({128}, {1024}),
    "CDNA4": ({128}, {2048}),
}


@every_gpu
def test_peaks_are_what_the_multiprocessors_do_at_the_boost_clock(gpu):
    per_clock = 2 * gpu.sms * gpu.boost_mhz * 1e6
    for dtype, expected in zip(("fp32", "fp16"), FMA_PER_CLOCK[gpu.architecture], strict=True):
        fma = gpu.peak(dtype) / per_clock
        # Data sheets give peaks of one GPU at two clocks: 1980 and 1830 MHz for Hopper's fp32 and tensor cores.
        assert min(abs(fma / whole - 1) for whole in expected) < 0.15, f"{dtype}: {fma:.1f} FMA a clock"


@pytest.mark.parametrize("entry", catalogue._catalogue()["gpu"], ids=lambda entry: entry["name"])
def test_every_value_names_its_source(entry):
    named = entry.get("source_of", {})
    assert named.keys() <= entry.keys()
    assert all(re.search(r"[a-z]{3}", source) for source in (entry["source"], *named.values()))


@every_gpu
def test_every_name_of_a_gpu_finds_it_and_no_other(gpu):
    assert all(find_gpu(name) is gpu for name in (gpu.name, *gpu.aliases, gpu.slug, gpu.name.upper()))


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB"),
        ("Tesla V100-SXM2-32GB", "V100 SXM"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell Server"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("gb300_nvl72", "GB300"),
        ("rtx_pro_6000", "RTX PRO 6000 Blackwell Server"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell Workstation"),
        ("a6000", "RTX A6000"),
        ("AMD Instinct MI300X", "MI300X"),
        ("  h100_sxm ", "H100 SXM"),
        ("a100", "A100 SXM"),
    ],
)
def test_names_of_drivers_and_of_people_are_understood(written, name):
    assert find_gpu(written).name == name


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("NVIDIA H200", (9, 0)),
        ("NVIDIA GH200 144G HBM3e", (9, 0)),
        ("NVIDIA B300 SXM6 AC", find_gpu("B300").compute_capability),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", (8, 0)),
        ("NVIDIA GeForce RTX 4090 D", (8, 9)),
        ("Tesla V100-DGXS-32GB", (7, 0)),
        ("Quadro RTX 6000", None),
        ("AMD Instinct MI300X", None),
        ("NVIDIA X9000", None),
        ("", None),
    ],
)
def test_a_gpus_compute_capability_is_known_also_of_variants(name, capability):
    assert capability_of(name) == capability


@pytest.mark.parametrize(("written", "near"), [("H10O", "H100 SXM"), ("L40 S X", "L40S"), ("RTX 4090 Ti", "RTX 4090")])
def test_an_unknown_gpu_is_answered_with_the_nearest_names(written, near):
    with pytest.raises(UserError, match=f"did you mean .*{near}"):
        find_gpu(written)


def test_a_gpu_is_a_key_and_its_dtypes_without_units_are_refused_with_those_there_are():
    assert find_gpu("H200").peak("fp8") == pytest.approx(1978.9e12)
    with pytest.raises(UserError, match="A100 SXM has no units for 'fp8': ask for one of fp32, tf32, fp16, bf16, int8"):
        find_gpu("A100").peak("fp8")
    gpu = find_gpu("H200")
    assert {copy.deepcopy(gpu): 1}[gpu] == 1
    assert (str(gpu), gpu.slug) == ("H200 SXM", "h200_sxm")


def test_all_gpus_of_the_published_list_are_there_with_its_values(measured_tables):
    columns = {
        "sms": ("sms", 1),
        "boost_mhz": ("boost_mhz", 1),
        "mem_gb": ("memory_bytes", 2**30),
        "mem_bw_gbs": ("memory_bytes_per_s", 1e9),
        "l2_mb": ("l2_bytes", 2**20),
        "tdp_w": ("power_w", 1),
        "link_gbs_bidir_total": ("link_bytes_per_s", 0.5e9),
    }
    peaks = {f"{dtype}{suffix}": dtype for dtype in DTYPES for suffix in ("_tflops", "_dense_tflops", "_dense_tops")}
    with (measured_tables / "gpus.csv").open(encoding="utf-8") as table:
        rows = list(csv.DictReader(table))
    assert len(rows) == 28
    for row in rows:
        gpu = find_gpu(row["name"])
        for column, (field, unit) in columns.items():
            expected = float(row[column]) * unit if row[column] else None
            assert getattr(gpu, field) == (expected if expected is None else pytest.approx(expected)), (gpu, field)
        published = {peaks[column]: float(value) * 1e12 for column, value in row.items() if column in peaks and value}
        assert gpu.peak_flop_per_s == pytest.approx(published), gpu


ADDED = """
[[architecture]]
compute_capability = [11, 5]
generation = "Blackwell"
cuda_kernels = "sm80"
features = ["tma", "float8_sums"]
resident_blocks = 32
resident_warps = 64
shared_kib = 256
shared_block_kib = 255
nvlink = "NVLink 5"
pcie = "PCIe 6 x16"

[[gpu]]
name = "R900 SXM"
aliases = ["R900"]
architecture = "Rubin"
compute_capability = [11, 5]
sms = 160
boost_mhz = 2000
memory_gib = 288
memory_gb_per_s = 13000
l2_mib = 128
peak_tflop_per_s = { fp32 = 100, fp16 = 4000, bf16 = 4000 }
link_gb_per_s = 900
power_w = 1800
source = "a data sheet made up for this test"
"""


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuSpec]:
    """A GPU of a new architecture that only the catalogue's file knows."""
    caches = (catalogue._catalogue, catalogue.architectures, catalogue.all_gpus, catalogue._by_key)
    (tmp_path / "gpus.toml").write_text(catalogue.CATALOGUE.read_text(encoding="utf-8") + ADDED)
    monkeypatch.setattr(catalogue, "CATALOGUE", tmp_path / "gpus.toml")
    for cached in caches:
        cached.cache_clear()
    yield catalogue.find_gpu("R900")
    for cached in caches:
        cached.cache_clear()


def test_a_gpu_added_to_the_file_alone_is_detected_with_links_occupancy_kernels_and_default_blocks(added):
    identity = {"kind": "cuda", "model": "NVIDIA R900 SXM", "link": "nvlink5x18"}
    assert catalogue.find_gpu(identity["model"]) is added
    assert catalogue.capability_of("NVIDIA R900 NVL") == (11, 5)
    assert nvlink_of(added.compute_capability).name == "NVLink 5"
    assert pcie_of(added.compute_capability).name == "PCIe 6 x16"
    assert peak_of(identity).gb_per_s == 900
    assert occupancy("sm_115a", 128, 32, 100 << 10).blocks == 2
    assert catalogue.architecture(added.compute_capability).cuda_kernels in static.families()
    gemm_sm80.default_set()[0].check_device("11.5")
    with pytest.raises(ValueError, match="whose wgmma no other has"):
        gemm_sm90.default_set()[0].check_device("11.5")
    assert matmul.default_set("sm_115") == matmul.default_set("sm_100")
    assert attention_defaults.generation_of("sm_115") == "Blackwell"
