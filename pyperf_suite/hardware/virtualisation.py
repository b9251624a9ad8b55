"""Whether the machine is a virtual one and this process in a container: both change what a time means."""

from __future__ import annotations

from pyperf_suite.hardware.kernel_files import KernelFiles

# What firmware calls a machine that is none, and the field's short name for it.
FIRMWARE = {
    "amazon ec2": "nitro",
    "bochs": "qemu",
    "google": "kvm",
    "innotek": "virtualbox",
    "kvm": "kvm",
    "openstack": "kvm",
    "parallels": "parallels",
    "qemu": "qemu",
    "virtual machine": "hyper-v",
    "vmware": "vmware",
    "xen": "xen",
}
DMI = "sys/class/dmi/id"


def hypervisor(files: KernelFiles, flags: frozenset[str] = frozenset()) -> str | None:
    """The hypervisor's name, `unnamed` where the CPU admits to one that nothing names, None on bare metal."""
    product = (files.text(f"{DMI}/product_name") or "").lower()
    named = files.text("sys/hypervisor/type") or files.text("proc/device-tree/hypervisor/compatible")
    # Cloud firmware names its vendor on bare-metal instances too: the x86 flag decides where there is one.
    if "metal" in product or (flags and "hypervisor" not in flags and named is None):
        return None
    if named is not None:
        return named.split("\0")[0].removeprefix("linux,")
    firmware = f"{files.text(f'{DMI}/sys_vendor') or ''} {product}".lower()
    for mark, name in FIRMWARE.items():
        if mark in firmware:
            return name
    return "unnamed" if "hypervisor" in flags else None


def container(files: KernelFiles) -> str | None:
    """The kind of container this process lives in, None where it lives in none that can be seen."""
    if files.exists(".dockerenv"):
        return "docker"
    if files.exists("run/.containerenv"):
        return "podman"
    if files.exists(".singularity.d"):
        return "apptainer"
    groups = files.text("proc/self/cgroup") or ""
    for mark in ("kubepods", "docker", "lxc", "libpod"):
        if mark in groups:
            return mark
    return None
