import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware import links as module
from pyperf_suite.hardware import topology
from pyperf_suite.hardware.devices import Gpu, Unavailable
from pyperf_suite.hardware.kernel_files import KernelFiles
from pyperf_suite.hardware.links import PcieDevice, PcieLink
from pyperf_suite.hardware.nvml import Nvml
from pyperf_suite.hardware.topology import LinkGraph, parse, wiring

# Publications of the texts; the legends are nvidia-smi's own.
ORIGINS = {
    "8xv100_sxm2": "Oneflow-Inc/DLPerf, reports of August 2020",
    "8xa100_sxm4": "jinluchang/Qlattice, documentation of benchmark_nccl",
    "8xh200_sxm": "a public record of an 8 x H200 node, driver 570.211.01",
    "8xhopper_coloured": "an issue report with sglang's environment check, colours as in a terminal",
    "4xgb200": "NVIDIA/k8s-test-infra, issue 371",
    "4xl40s": "warpem/miss-alignment, issue 106",
    "3xa6000_bridged": "a public note on peer bandwidth of RTX A6000",
}
FOLDER = Path(__file__).parent / "topologies"
HOPPER, AMPERE, VOLTA = (9, 0), (8, 0), (7, 0)


def text_of(name: str) -> str:
    return (FOLDER / f"{name}.txt").read_text()


def graph_of(name: str) -> LinkGraph:
    return parse(text_of(name))


def test_real_machines_name_their_origin_and_single_cells_are_those_printed():
    assert {path.stem for path in FOLDER.glob("*.txt")} == ORIGINS.keys()
    volta, hopper = graph_of("8xv100_sxm2"), graph_of("8xh200_sxm")
    assert str(volta.path(0, 3)) == "NV2"
    assert str(volta.path(5, "mlx5_0")) == "SYS"
    assert volta.cpus["GPU7"] == "12-23,36-47"
    assert not volta.numa  # that driver printed no such column
    assert str(hopper.path("NIC2", "GPU7")) == "PIX"
    assert hopper.numa == {f"GPU{number}": "0" if number < 4 else "1" for number in range(8)}


@pytest.mark.parametrize(
    ("name", "capability", "pair", "gb_per_s"),
    [
        ("8xh200_sxm", HOPPER, ("GPU0", "GPU7"), 450.0),
        ("8xa100_sxm4", AMPERE, ("GPU0", "GPU1"), 300.0),
        ("8xv100_sxm2", VOLTA, ("GPU0", "GPU3"), 50.0),
        ("8xv100_sxm2", VOLTA, ("GPU0", "GPU7"), 15.75),
        ("4xgb200", (10, 0), ("GPU1", "GPU2"), 900.0),
        ("4xl40s", (8, 9), ("GPU0", "GPU1"), 31.5),
        ("3xa6000_bridged", (8, 6), ("GPU0", "GPU1"), 56.25),
    ],
)
def test_a_pair_is_expected_to_carry_what_it_is_wired_for(name, capability, pair, gb_per_s):
    assert graph_of(name).path(*pair).peak_gb_per_s(capability) == gb_per_s


def test_a_gpu_without_nvlink_stands_out_where_others_have_it():
    # Seen on a node of eight B200: one of them reached by PCIe alone, its links down.
    text = text_of("8xh200_sxm")
    rows = [line.split("\t") for line in text.splitlines()]
    for number in range(1, 9):
        for column in range(1, 9):
            if 3 in (number, column) and number != column:
                rows[number][column] = "NODE"
    assert parse("\n".join("\t".join(row) for row in rows)).gpus_without_nvlink() == ("GPU2",)
    assert graph_of("3xa6000_bridged").gpus_without_nvlink() == ("GPU2",)
    for whole in ("8xh200_sxm", "8xv100_sxm2", "4xl40s"):
        assert graph_of(whole).gpus_without_nvlink() == ()


def test_a_path_that_the_driver_does_not_tell_is_kept_as_unknown():
    graph = parse("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tN/A\t0-15\nGPU1\tN/A\t X \tN/A\n")
    assert str(graph.path(0, 1)) == "unknown"
    assert graph.path(0, 1).peak_gb_per_s(HOPPER) is None
    assert graph.cpus == {"GPU0": "0-15"}


def test_a_cell_is_that_of_its_column_where_one_before_it_is_empty():
    text = text_of("8xh200_sxm").replace("SYS\t0-63,128-191\t0", "SYS\t\t0")
    assert text.count("\t\t0\t\tN/A") == 4
    for each in (text, text.expandtabs()):
        graph = parse(each)
        assert graph.numa == graph_of("8xh200_sxm").numa
        assert graph.cpus.keys() == {"GPU4", "GPU5", "GPU6", "GPU7"}
        assert graph.paths == graph_of("8xh200_sxm").paths


@pytest.mark.parametrize(
    ("mangle", "sentence"),
    [
        (lambda text: "", "no topology matrix"),
        (lambda text: "No devices were found\n", "no topology matrix"),
        (lambda text: text[: text.index("\nGPU6\t")], "no row for GPU6"),
        (lambda text: text[: text.index("\nGPU6\t") + 21], r"row of GPU6 .* has 3 cells where 16 devices"),
        # Seen in a pasted report: two cells have run together.
        (lambda text: text.replace("PIX\tNODE\tSYS", "PIXNODE\tSYS", 1), "'PIXNODE' between GPU2 and NIC0"),
        (lambda text: text.replace("\t X \t", "\tNV18\t", 1), "'NV18' between GPU0 and GPU0"),
        (lambda text: text.replace("NV18", "NV0", 1), "'NV0' between GPU0 and GPU1"),
        (lambda text: text.replace("NIC1\t", "NIC0\t", 1), "names a device twice"),
    ],
)
def test_a_text_that_is_cut_off_or_mangled_is_refused_in_one_sentence(mangle, sentence):
    with pytest.raises(UserError, match=sentence) as refusal:
        parse(mangle(text_of("8xh200_sxm")))
    assert str(refusal.value).count("\n") == 0


def test_a_device_that_is_not_there_is_refused_with_those_there_are():
    with pytest.raises(UserError, match=r"GPU0 and GPU4 .* GPU0, GPU1, GPU2, GPU3\."):
        graph_of("4xgb200").path(0, 4)
    # Network cards without rows of their own are read from those of the GPUs, and nothing is known between two of them.
    graph = parse("\n".join(line for line in text_of("8xh200_sxm").splitlines() if not line.startswith("NIC")))
    assert str(graph.path("NIC4", 0)) == "PIX"
    with pytest.raises(UserError, match="between NIC0 and NIC1"):
        graph.path("NIC0", "NIC1")


def answered(code: int, printed: bytes, errors: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.CompletedProcess([], code, printed, errors)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (FileNotFoundError(2, "No such file or directory"), "cannot be run (No such file or directory)"),
        (subprocess.TimeoutExpired("nvidia-smi", 30), "did not answer within 30 s"),
        (
            answered(9, b"", b"couldn't communicate with the NVIDIA driver\n"),
            "couldn't communicate with the NVIDIA driver",
        ),
        (answered(6, b"No devices were found\n"), "No devices were found"),
        (answered(255, b""), "code 255"),
        (answered(0, b"\xff\xfe"), "no topology matrix"),
    ],
)
def test_a_machine_that_cannot_be_asked_says_why(monkeypatch, answer, reason):
    monkeypatch.setattr(subprocess, "run", Mock(side_effect=[answer]))
    said = topology.read()
    assert isinstance(said, Unavailable)
    assert reason in str(said)


class Manager:
    """NVML that knows GPUs by the last digit of their UUID."""

    def index(self, uuid: str) -> int | None:
        return int(uuid[-1]) if uuid.startswith("GPU-") else None


def bridged_gpus(*uuids: str) -> list[Gpu]:
    return [Gpu(index, "RTX A6000", uuid, (8, 6), 84, 48 << 30) for index, uuid in enumerate(uuids)]


# GPU0 and GPU1 are bridged by four NVLinks, GPU2 stands alone.
BRIDGED = graph_of("3xa6000_bridged")


def test_paths_follow_the_gpus_that_a_process_sees_and_what_is_unknown_is_left_out():
    message = wiring(bridged_gpus("GPU-2", "GPU-1", "GPU-0"), Manager(), BRIDGED)
    assert {pair: link["path"] for pair, link in message.items()} == {"0-1": "NODE", "0-2": "NODE", "1-2": "NV4"}
    assert message["1-2"]["gb_per_s"] > message["0-1"]["gb_per_s"] > 0
    assert set(wiring(bridged_gpus("GPU-0", "GPU-2"), Manager(), BRIDGED)) == {"0-1"}
    assert wiring(bridged_gpus("GPU-0"), Manager(), BRIDGED) == {}
    assert wiring(bridged_gpus("GPU-0", "MIG-1"), Manager(), BRIDGED) == {}
    assert wiring(bridged_gpus("GPU-0", "GPU-1"), Manager(), Unavailable("there is no nvidia-smi")) == {}


CARD = "0000:17:00.0"


def link_files(folder: str, current: tuple[str, str] | None, maximum: tuple[str, str]) -> dict[str, str]:
    """The four files of a device's folder."""
    message = {f"{folder}/max_link_speed": maximum[0], f"{folder}/max_link_width": maximum[1]}
    if current:
        message |= {f"{folder}/current_link_speed": current[0], f"{folder}/current_link_width": current[1]}
    return message


@pytest.fixture
def bus(machine, tmp_path: Path) -> KernelFiles:
    """A network card of gen 5 x16 behind a port of gen 4 x16 that runs at gen 4 x8, a disk, and a bridge."""
    port, card = "sys/devices/pci0000:16/0000:16:01.0", f"sys/devices/pci0000:16/0000:16:01.0/{CARD}"
    disk, bridge = "sys/devices/pci0000:16/0000:19:00.0", "sys/devices/pci0000:16/0000:20:00.0"
    files = machine(
        link_files(port, None, ("16.0 GT/s PCIe", "16"))
        | link_files(card, ("16.0 GT/s PCIe", "8"), ("32.0 GT/s PCIe", "16"))
        | {f"{card}/class": "0x020000", f"{card}/numa_node": "1", f"{card}/infiniband/mlx5_3/node_type": "1"}
        | {f"{card}/net/eth7/mtu": "9000"}
        | link_files(disk, ("8 GT/s", "4"), ("8 GT/s", "4"))
        | {f"{disk}/class": "0x010802", f"{disk}/numa_node": "-1"}
        | link_files(bridge, ("8.0 GT/s PCIe", "16"), ("8.0 GT/s PCIe", "16"))
        | {f"{bridge}/class": "0x060400"}
    )
    folder = tmp_path / module.FOLDER
    folder.mkdir(parents=True)
    for device in (port, card, disk, bridge):
        (folder / device.rpartition("/")[2]).symlink_to(tmp_path / device)
    return files


def test_devices_have_their_link_the_cards_and_the_ports_above_and_are_read_back_from_json(bus):
    card, disk = module.devices(bus)
    assert card == PcieDevice("mlx5_3", "network", PcieLink(4, 8), PcieLink(5, 16), PcieLink(4, 16), 1)
    assert (disk.kind, disk.now, disk.slot, disk.numa_node) == ("NVMe", PcieLink(3, 4), None, None)
    assert card.card is not None
    assert card.card.common(card.slot) == PcieLink(4, 16)
    assert [PcieLink(generation, 16).gb_per_s for generation in (1, 5, 9)] == [4.0, 63.0, None]
    for device in module.devices(bus):
        assert PcieDevice.from_json(device.to_json()) == device
    assert module.devices(bus)[0].to_json()["now"] == "gen 4 x8"


@pytest.mark.parametrize(
    ("peers", "words"),
    [
        ((0, 0), "allowed"),
        ((0, 3), "the bridges between the two pass none"),
        ((4, 0), "switched off in the driver"),
        ((6, 0), None),
        ((0, 99), None),
    ],
)
def test_direct_copies_are_allowed_where_reads_and_writes_are(fake_nvml, peers, words):
    manager = Nvml(fake_nvml(peers=peers))
    assert manager.direct_copies("GPU-1", "GPU-2") == words
    assert manager.direct_copies("GPU-1", "?") is None
    assert Nvml(fake_nvml.without("P2PStatus")(peers=peers)).direct_copies("GPU-1", "GPU-2") is None
