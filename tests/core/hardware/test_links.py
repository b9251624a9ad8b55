"""PCIe links by Linux's files: what runs, what card and slot are made for, and what has no link."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.hardware import links as module
from pyperf_suite.hardware.kernel_files import KernelFiles
from pyperf_suite.hardware.links import PCIE, PcieDevice, PcieLink, pcie_lanes_gb_per_s
from pyperf_suite.hardware.nvml import Nvml

CARD = "0000:17:00.0"


def links(folder: str, current: tuple[str, str] | None, maximum: tuple[str, str]) -> dict[str, str]:
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
        links(port, None, ("16.0 GT/s PCIe", "16"))
        | links(card, ("16.0 GT/s PCIe", "8"), ("32.0 GT/s PCIe", "16"))
        | {f"{card}/class": "0x020000", f"{card}/numa_node": "1", f"{card}/infiniband/mlx5_3/node_type": "1"}
        | {f"{card}/net/eth7/mtu": "9000"}
        | links(disk, ("8 GT/s", "4"), ("8 GT/s", "4"))
        | {f"{disk}/class": "0x010802", f"{disk}/numa_node": "-1"}
        | links(bridge, ("8.0 GT/s PCIe", "16"), ("8.0 GT/s PCIe", "16"))
        | {f"{bridge}/class": "0x060400"}
    )
    folder = tmp_path / module.FOLDER
    folder.mkdir(parents=True)
    for device in (port, card, disk, bridge):
        (folder / device.rpartition("/")[2]).symlink_to(tmp_path / device)
    return files


def test_devices_have_their_link_the_cards_and_that_of_the_port_above(bus):
    card, disk = module.devices(bus)
    assert card == PcieDevice("mlx5_3", "network", PcieLink(4, 8), PcieLink(5, 16), PcieLink(4, 16), 1)
    assert (disk.kind, disk.now, disk.slot, disk.numa_node) == ("NVMe", PcieLink(3, 4), None, None)
    assert card.card is not None
    assert card.card.common(card.slot) == PcieLink(4, 16)


@pytest.mark.parametrize(("speed", "width"), [("Unknown", "16"), ("16.0 GT/s PCIe", "0"), ("16.0 GT/s PCIe", "255")])
def test_a_device_of_unknown_link_is_left_out(machine, speed, width):
    folder = f"{module.FOLDER}/{CARD}"
    files = machine(links(folder, (speed, width), ("16.0 GT/s PCIe", "16")) | {f"{folder}/class": "0x030200"})
    assert module.devices(files) == []
    assert module.devices(machine({})) == []


def test_a_device_is_kept_as_json_and_read_back(bus):
    for device in module.devices(bus):
        assert PcieDevice.from_json(device.to_json()) == device
    assert module.devices(bus)[0].to_json()["now"] == "gen 4 x8"


@given(st.integers(1, 6), st.sampled_from([1, 2, 4, 8, 16]))
def test_a_link_is_read_back_and_carries_half_of_twice_its_lanes(generation, width):
    link = PcieLink(generation, width)
    assert PcieLink.parse(str(link)) == link
    whole = PcieLink(generation, 2 * width).gb_per_s
    assert link.gb_per_s == pytest.approx((whole or 0) / 2)


def test_lanes_carry_what_a_slot_of_sixteen_does_and_an_unknown_generation_nothing_known():
    assert all(pcie_lanes_gb_per_s(generation, 16) == peak.gb_per_s for generation, peak in PCIE.items())
    assert pcie_lanes_gb_per_s(1, 16) == 4.0
    assert pcie_lanes_gb_per_s(9, 16) is None
    with pytest.raises(ValueError, match="no PCIe link"):
        PcieLink.parse("gen x16")


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
