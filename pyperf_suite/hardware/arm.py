"""Names for Arm cores, which the kernel tells by two numbers alone.

Implementer and part number of the Main ID Register, from Arm's technical reference manuals and lscpu's table.
"""

from __future__ import annotations

IMPLEMENTERS = {
    0x41: "Arm",
    0x46: "Fujitsu",
    0x48: "HiSilicon",
    0x4E: "NVIDIA",
    0x51: "Qualcomm",
    0x61: "Apple",
    0x6D: "Microsoft",
    0xC0: "Ampere",
}
PARTS = {
    (0x41, 0xD08): "Cortex-A72",
    (0x41, 0xD0B): "Cortex-A76",
    (0x41, 0xD0C): "Neoverse-N1",
    (0x41, 0xD40): "Neoverse-V1",
    (0x41, 0xD49): "Neoverse-N2",
    (0x41, 0xD4F): "Neoverse-V2",
    (0x41, 0xD83): "Neoverse-V3AE",
    (0x41, 0xD84): "Neoverse-V3",
    (0x41, 0xD8E): "Neoverse-N3",
    (0x46, 0x001): "A64FX",
    (0x48, 0xD01): "TaiShan-v110",
    (0x4E, 0x004): "Carmel",
    (0x6D, 0xD49): "Azure-Cobalt-100",
    (0xC0, 0xAC3): "Ampere-1",
    (0xC0, 0xAC4): "Ampere-1a",
}


def core_name(implementer: str | None, part: str | None) -> str | None:
    """The core's name from the two hexadecimal numbers of /proc/cpuinfo; None where either is no number.

    >>> core_name("0x41", "0xd4f")
    'Arm Neoverse-V2'
    """
    try:
        by, number = int(implementer or "", 16), int(part or "", 16)
    except ValueError:
        return None
    return f"{IMPLEMENTERS.get(by, f'implementer {by:#x}')} {PARTS.get((by, number), f'part {number:#x}')}"
