"""The probes and their axes by name, for a shell that completes them: importing the probes takes too long for that.

A test holds this table to the probes themselves.
"""

from __future__ import annotations

AXES: dict[str, str] = {
    "tile_wave": "implementation library tile schedule workers k dtype layout along across waves offset mode",
    "baseline": "implementation library shape layout dtype workers tile schedule mode",
    "alignment": "implementation library padded base along offset ladder span pad_to "
    "real tokens hidden dtype layout workers tile schedule mode",
    "attention_heads": "implementation beside hidden heads head_dim heads_of_head_dim kv_ratio mask "
    "phase seq batch dtype workers blocks varied_splits mode",
    "collectives": "op size dtype ranks implementation in_place reduction root peer_to_peer registered pairs pair_size",
    "calibration": "implementation attention_implementation shape attention layout dtype workers mode",
    "static_kernels": "compiler target",
    "topology": "part",
    "memory": "block attention dropout checkpointing precision batch "
    "seq kv_heads hidden heads layers vocab implementation",
    "block": "model compiled checkpointing precision part edge library hidden heads layers seq batch vocab workers",
    "backward": "layer phase batch seq hidden ffn channels heads dtype workers",
    "precision": "precision beside batch seq hidden heads layers "
    "vocab unaligned_hidden unaligned_heads unaligned_batch cast_cache micro_batches cached_batch workers",
    "data_parallel": "implementation ranks hidden layers seq batch exchange "
    "bucket vocab accumulate static_graph peer_to_peer dtype all_reduce",
    "overlap": "implementation ranks size message dtype run peer_to_peer",
    "input_pipeline": "data loaders prefetch workers copy start model step_us batch files",
    "transfer": "way size torch_size disk_size workers memory numa_node folder",
    "optimizer": "optimizer implementation tensors dtype workers",
    "checkpointing": "checkpointing batch hidden heads layers seq vocab attention precision part budget_mb workers",
    "step_calibration": "shape layout attention attention_implementation layer tokens tensors "
    "op size ranks model engine",
    "study": "hidden heads layers seq vocab global_batch batch implementation dtype kv_heads ffn gated tied attention "
    "checkpointing data tensor pipeline chunks zero_stage configuration",
}

PROFILES = ("quick", "standard", "full")
DEVICES = ("auto", "cpu", "cuda:0")


def axes_of(probes: tuple[str, ...]) -> list[str]:
    """The axes of those probes, of all where none is named, each once; unknown probes have none."""
    chosen = [AXES[name] for name in probes or AXES if name in AXES]
    return list(dict.fromkeys(axis for axes in chosen for axis in axes.split()))
