"""Virtual machines, bare metal that looks like one, and containers."""

from __future__ import annotations

import pytest

from pyperf_suite.hardware import cpu

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
def test_a_container_is_told_by_its_marks(machine, contents, kind):
    assert cpu.container(machine(contents)) == kind
