"""Which changes of a machine's state break a series: what may change speed without a change of the code measured.

A GPU's UUID is no break but a label on the points, and neither is this package's own version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# In the state's own words, and a person's. Packages are compared one by one.
SETTINGS = {
    "gpu.driver": "driver",
    "gpu.cuda": "CUDA",
    "gpu.power_limit_w": "power limit (W)",
    "gpu.ecc": "ECC",
    "gpu.persistence_mode": "persistence mode",
    "gpu.application_sm_clock_mhz": "application clock (MHz)",
    "gpu.maximum_sm_clock_mhz": "maximum clock (MHz)",
    "kernel": "kernel",
    "governors": "governors",
    "turbo": "turbo",
    "smt": "SMT",
    "transparent_hugepages": "huge pages",
    "cpu_quota_cores": "CPU quota (cores)",
    "hypervisor": "hypervisor",
    "container": "container",
    "python": "Python",
    "compiler": "compiler",
    "kernel_compiler": "kernel compiler",
    "harness": "harness",
}
# Machine code depends on who made it, and on nothing else here.
SETTINGS_OF_MACHINE_CODE = ("gpu.cuda", "kernel_compiler")
NOT_THE_MACHINE = ("pyperf_suite", "pytest-benchmark")
ABSENT = "absent"


def settings(state: Mapping[str, Any], kind: str = "timing") -> dict[str, str]:
    """The settings that a state tells of, as text by a person's name for them; what it does not tell is left out."""
    names = SETTINGS_OF_MACHINE_CODE if kind == "static" else tuple(SETTINGS)
    told = {SETTINGS[name]: _text(value) for name in names if (value := _reach(state, name)) not in (None, [])}
    packages = state.get("packages")
    for name, version in packages.items() if isinstance(packages, Mapping) else ():
        if name not in NOT_THE_MACHINE:
            told[name] = ABSENT if version is None else _text(version)
    return told


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """What differs between two `settings`, as in "driver 570.1 -> 580.2"; what only one of them tells is no change."""
    return [f"{name} {before[name]} -> {after[name]}" for name in after if before.get(name, after[name]) != after[name]]


def unit_of(state: Mapping[str, Any]) -> str:
    """The UUID of the GPU that a state is of; "" where it names none."""
    return _text(_reach(state, "gpu.uuid") or "")


def commit_of(state: Mapping[str, Any]) -> tuple[str, bool]:
    """The commit that was measured, "" if it is not told, and whether files differed from it."""
    commit = _reach(state, "source.commit")
    return (commit, _reach(state, "source.dirty") is True) if isinstance(commit, str) else ("", False)


def _reach(state: Mapping[str, Any], name: str) -> Any:
    value: Any = state
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None  # JSON has no other mapping
    return value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return "+".join(map(str, value))[:80]
    return f"{value:g}"[:80] if isinstance(value, float) else str(value)[:80]
