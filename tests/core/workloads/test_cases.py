"""Cases of every workload: measured like any other, refused in one sentence where no machine or not this one can."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_type_hints

import pytest

from pyperf_suite.errors import Unsupported, UserError, Within
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.tiled_attention import Blocks
from pyperf_suite.laws.tiling import Schedule
from pyperf_suite.record.case import Case
from pyperf_suite.runner.measuring import measure_case
from pyperf_suite.workloads import find_workload
from pyperf_suite.workloads.attention import AttentionParameters
from pyperf_suite.workloads.collective import CollectiveParameters
from pyperf_suite.workloads.exact import CompiledKernelParameters, TopologyParameters
from pyperf_suite.workloads.matmul import GroupedMatmulParameters, MatmulParameters
from pyperf_suite.workloads.training import Checkpointing, requested_flop
from pyperf_suite.workloads.training.data_parallel import DataParallelParameters, OverlapParameters
from pyperf_suite.workloads.training.input_pipeline import InputPipelineParameters
from pyperf_suite.workloads.training.layers import BlockPartParameters, LayerPassParameters
from pyperf_suite.workloads.training.optimizer import OptimizerUpdateParameters, TensorSet
from pyperf_suite.workloads.training.training_step import TrainingStepParameters
from pyperf_suite.workloads.training.transfer import TransferParameters
from pyperf_suite.workloads.workload import ExecutionContext

CPU = Device("cpu")
SMALL = {"hidden": 64, "heads": 4, "layers": 3, "seq": 16, "batch": 2}
RIGHT: dict[str, Any] = {
    "training_step": TrainingStepParameters(**SMALL),
    "checkpointed_step": TrainingStepParameters(**SMALL, part="train"),
    "precision_step": TrainingStepParameters(**SMALL, precision="autocast_bfloat16", cast_cache="nested"),
    "block_part": BlockPartParameters(**SMALL, part="up"),
    "layer_pass": LayerPassParameters(layer="attention", phase="backward", batch=2, seq=36, hidden=24, heads=3),
    "optimizer_update": OptimizerUpdateParameters(TensorSet(5, 24, 16), optimizer="SGD"),
    "overlap": OverlapParameters(96, 1 << 16),
    "data_parallel": DataParallelParameters(hidden=64, heads=2, layers=2, seq=16, batch=2),
    "transfer": TransferParameters(4096),
    "input_pipeline": InputPipelineParameters(files=6, batch=2, step_us=200),
    "grouped_matmul": GroupedMatmulParameters(experts=4, rows=70, n=24, k=16, dtype="float32"),
    "collective": CollectiveParameters("all_reduce", 1024, 8),
    "attention": AttentionParameters(1, 12, 64, 64),
    "matmul": MatmulParameters(33, 65, 47, Schedule("library", 1)),
    "compiled_kernel": CompiledKernelParameters("sm80_bf16_bf16_tn_64x64x64_s4_w2x2", "sm_80"),
    "topology": TopologyParameters(),
}
STEP_FLOP = round(requested_flop(RIGHT["training_step"]))
OURS = {"schedule": Schedule("data_parallel", 1)}
PADDING = ("torch_padded", "cublas_padded")
REFUSED = [
    ("training_step", "torch", {"hidden": 66}, "cannot be divided into 4 heads"),
    ("training_step", "torch", {"kv_heads": 3}, "cannot share 3 key-value heads"),
    ("training_step", "torch", {"dropout": 1.0}, "dropout is a share"),
    ("training_step", "torch", {"workers": 4096}, "4096 workers"),
    ("checkpointed_step", "torch", {"compiled": True}, "takes no compiled"),
    ("checkpointed_step", "torch", {"heads": 3}, "cannot be divided"),
    ("precision_step", "torch", {"precision": "float32"}, "float32 casts no weights"),
    ("precision_step", "torch", {"compiled": True}, "takes no compiled"),
    ("precision_step", "torch", {"part": "train"}, "leave part=train out"),
    ("layer_pass", "torch", {"layer": "gelu", "out": 3}, "leave out=3 out"),
    ("layer_pass", "torch", {"layer": "conv", "seq": 40}, "seq = 40 is no square: take 36 or 49"),
    ("layer_pass", "torch", {"heads": 5}, "cannot be divided into 5 heads"),
    (
        "layer_pass",
        "torch",
        {"layer": "gelu", "phase": "wgrad"},
        "gelu has no wgrad of its own: choose from forward, back",
    ),
    ("layer_pass", "torch", {"layer": "copy", "phase": "backward"}, "choose from forward"),
    ("layer_pass", "torch", {"workers": 4096}, "4096 workers"),
    ("optimizer_update", "foreach", {"tensors": TensorSet(1, 1 << 20, 1 << 20)}, "more than"),
    ("optimizer_update", "fused", {"optimizer": "Adafactor"}, "AdamW and SGD alone"),
    ("optimizer_update", "torchao_8bit", {}, "with AdamW alone"),
    ("overlap", "gloo", {"bytes": 3}, "bytes=3"),
    ("overlap", "gloo", {"ranks": 30000}, "launch them on several machines"),
    ("data_parallel", "gloo", {"dropout": 0.1}, "leave it 0"),
    ("data_parallel", "gloo", {"exchange": "none", "bucket_bytes": 5}, "bucket_bytes is DDP's"),
    ("data_parallel", "gloo", {"no_sync": False}, "several micro-batches"),
    ("data_parallel", "gloo", {"ranks": 30000}, "launch them on several machines"),
    ("data_parallel", "gloo", {"peer_to_peer": False}, "NCCL's alone"),
    ("data_parallel", "gloo", {"exchange": "dp"}, "ask for the implementation dp"),
    ("data_parallel", "nccl", {"exchange": "dp"}, "ask for the implementation dp"),
    ("data_parallel", "dp", {}, "ask for the implementation dp with exchange=dp"),
    ("data_parallel", "gloo", {"hidden": 65}, "cannot be divided"),
    (
        "transfer",
        "memcpy",
        {"workers": 2},
        "workers=2 was requested, which memcpy does not take: .* ask for one of torch",
    ),
    ("transfer", "memcpy", {"pinned": True}, "or ask for one of host_to_device, device_to_host"),
    ("transfer", "torch", {"workers": 4096}, "4096 workers"),
    ("transfer", "torch", {"pinned": True}, "which torch does not take"),
    ("transfer", "disk_direct", {"size_bytes": 4097}, "whole blocks of 4096"),
    ("transfer", "disk_cached", {"workers": 2}, "which disk_cached does not take"),
    ("transfer", "host_to_device", {"workers": 2}, "which host_to_device does not take"),
    ("transfer", "pigeon", {}, "choose from"),
    ("input_pipeline", "torch", {"batch": 7}, "do not fill a batch of 7"),
    ("collective", "nccl", {"settings": "CTAPolicy:2"}, "as in CTAPolicy=2\\+maxCTAs=8"),
    ("collective", "nccl", {"settings": "CTAPolicy=2+"}, "as in CTAPolicy=2\\+maxCTAs=8"),
    ("collective", "nccl", {"registered": True, "symmetric": True}, "a window is registered, ask for one"),
    ("matmul", "native", {"hints": "none"}, "hints=none was requested of native, but hints are Triton's"),
    ("collective", "nccl", {"op": "all_gather", "bytes": 31}, "ask for at least 32 bytes"),
    ("collective", "nccl", {"op": "broadcast", "reduction": "max"}, "broadcast was requested with reduction"),
    ("collective", "nccl", {"root": 1}, "all_reduce was requested with root"),
    ("collective", "nccl", {"op": "reduce", "root": 8}, "Root 8 was requested among 8 ranks"),
    ("collective", "nccl", {"op": "all_to_all", "in_place": True}, "all_to_all was requested with in_place"),
    ("collective", "nccl", {"pattern": "0-1"}, "all_reduce was requested with pattern"),
    ("collective", "nccl", {"op": "pairs", "pattern": "0,1"}, "write pairs of ranks, as in 0-3 or 0-1,2-3"),
    ("collective", "nccl", {"op": "pairs", "pattern": "0-8"}, "ranks 0-8 was requested among 8"),
    ("collective", "nccl", {"op": "ping_pong", "pattern": "2-2"}, "give two different ones"),
    ("collective", "nccl", {"op": "ping_pong", "pattern": "0-1,1-2"}, "a rank plays with one other"),
    ("collective", "nccl", {"op": "bisection", "ranks": 1}, "at least 2"),
    ("attention", "sdpa_default", {"kv_heads": 5}, "must divide the 12 heads: choose from 1, 2, 3, 4, 6, 12"),
    ("attention", "sdpa_default", {"kv_heads": 24}, "24 key heads"),
    ("attention", "sdpa_default", {"causal": True, "seq_k": 60}, "the first 4 queries would see no key"),
    *(
        ("attention", library, {"blocks": Blocks(64, 64)}, "chooses its blocks itself, but 64x64")
        for library in ("sdpa_default", "sdpa_flash", "two_gemm")
    ),
    ("attention", "native", {"backward": True}, "computes the forward pass only"),
    ("attention", "native", {"workers": 4096}, "4096 workers were requested"),
    ("attention", "native", {"blocks": Blocks(64, 33)}, "Blocks 64x33 cannot be computed"),
    ("attention", "native", {"blocks": Blocks(64, 64, stages=3)}, "64x64:s3 name stages, warps.*ask for 64x64"),
    ("attention", "native", {"blocks": Blocks(64, 64, warps=4)}, "Blocks 64x64:w4 name stages, warps"),
    ("attention", "triton", {"blocks": Blocks(100, 64)}, "the nearest are 128x64"),
    ("attention", "triton", {"blocks": Blocks(128, 64, warps=3)}, "power of two"),
    ("attention", "triton", {"blocks": Blocks(128, 64, persistent=True)}, "128x64:p are for workers that stay"),
    ("attention", "cuda_sm90", {"backward": True}, "computes the forward pass only.*ask triton"),
    ("attention", "triton", {"batch": 1 << 15, "seq_q": 1 << 15}, "rows were requested in all"),
    ("matmul", "torch", {"dtype": "int32"}, "operands of integers are int8"),
    *(
        ("matmul", kernel, {"dtype": dtype, **OURS}, f"{dtype} into .* was requested.*bf16")
        for kernel in ("cuda_sm80", "cuda_sm90")
        for dtype in ("int8", "tfloat32")
    ),
    *(
        ("matmul", other, {"pad_to": 8}, "pad_to=8 was requested: use torch_padded or cublas_padded")
        for other in sorted({*find_workload("matmul").implementations} - {*PADDING})
    ),
    *(("matmul", library, {"pad_to": 1}, "pad_to = 1 leaves them as they are") for library in PADDING),
    ("compiled_kernel", "nvrtc", {"kernel": "sm80_of_dreams"}, "'sm80_of_dreams' for sm_80: choose from sm80_"),
    ("training_step", "torch", {"classes": 2}, "with a vocabulary"),
]
# Cases that are right, but not on a CPU or not on this one.
UNSUPPORTED = [
    ("attention", "sdpa_cudnn", {}, r"runs on GPUs only\.$"),
    ("attention", "sdpa_efficient", {}, r"runs on GPUs only\.$"),
    *(
        ("attention", "native", {"dtype": "float32", "blocks": blocks, **change}, words)
        for blocks in (None, Blocks(16, 64))
        for change, words in (
            ({"dtype": "float16"}, "choose float32 or bfloat16"),
            ({"head_dim": 520}, "head_dim = 520 is out of range"),
        )
    ),
    *(
        ("matmul", library, {"dtype": dtype, "pad_to": pad_to}, f"{words}.*: ask for float32 or bfloat16")
        for library, pad_to in (("torch", 1), ("torch_padded", 8))
        for dtype, words in (("tfloat32", "tfloat32 is arithmetic of GPUs"), ("int8", "Products of int8 are measured"))
    ),
    ("matmul", "native", {"dtype": "int8", **OURS}, "'int8' is unknown: choose float32 or bfloat16"),
    ("matmul", "native", {"dtype": "float16", **OURS}, "'float16' is unknown: choose float32 or bfloat16"),
    ("grouped_matmul", "triton", {}, "compiles for GPUs"),
    ("layer_pass", "torch", {"layer": "linear", "dtype": "tfloat32"}, "no tfloat32"),
    ("training_step", "torch", {"precision": "tfloat32"}, "no tfloat32"),
    ("input_pipeline", "torch", {"pinned": True}, "copies to a GPU"),
    ("transfer", "host_to_device", {}, "no GPU"),
    ("transfer", "disk_cached", {"folder": "/nowhere"}, "no folder /nowhere"),
]


def beyond_limits() -> Iterator[tuple[str, str, Any]]:
    """A value just beyond each limit that a parameter of a workload declares."""
    for workload, parameters in RIGHT.items():
        for name, hint in get_type_hints(type(parameters), include_extras=True).items():
            for limit in getattr(hint, "__metadata__", ()):
                ends = (limit.lower - 1, limit.upper + 1) if isinstance(limit, Within) else ("of nobody",)
                yield from ((workload, name, value) for value in ends if not str(value).endswith("inf"))


@pytest.mark.parametrize(("workload", "name", "value"), list(beyond_limits()))
def test_a_value_beyond_what_a_parameter_declares_is_refused(workload, name, value):
    parameters, implementation = replace(RIGHT[workload], **{name: value}), min(find_workload(workload).implementations)
    with pytest.raises(
        UserError, match=rf"^{name}={re.escape(str(value))} was requested(, but {name} |: choose from )"
    ):
        Case(workload, parameters, implementation).validate()


@pytest.mark.parametrize(("workload", "implementation", "change", "sentence"), REFUSED)
def test_what_cannot_be_is_refused_in_one_sentence(workload, implementation, change, sentence):
    with pytest.raises(UserError, match=sentence) as refused:
        Case(workload, replace(RIGHT[workload], **change), implementation).validate()
    assert ". " not in str(refused.value).replace("\n", ". ")


@pytest.mark.parametrize(("workload", "implementation", "change", "sentence"), UNSUPPORTED)
def test_what_this_machine_cannot_do_is_unsupported_in_one_sentence(workload, implementation, change, sentence):
    pytest.importorskip("torch")
    case = Case(workload, replace(RIGHT[workload], **change), implementation)
    case.validate()
    with pytest.raises(Unsupported, match=sentence):
        find_workload(workload).prepare(case.parameters, implementation, ExecutionContext(CPU))


@pytest.mark.parametrize(
    ("workload", "implementation", "change", "work"),
    [
        ("training_step", "torch", {"checkpointing": Checkpointing("every", 2)}, {"flop": STEP_FLOP}),
        ("precision_step", "torch", {"micro_batches": 2}, {"flop": 2 * STEP_FLOP}),
        ("checkpointed_step", "torch", {"part": "forward"}, {"flop": round(STEP_FLOP / 3)}),
        ("layer_pass", "torch", {}, {"flop": 2.5 * 4 * 2 * 24 * 36 * 37 // 2}),
        ("block_part", "torch", {}, {"flop": 2 * 32 * 64 * 256}),
        ("optimizer_update", "foreach", {}, {"bytes": 5 * 4 * 5 * 24 * 16}),
        ("transfer", "memcpy", {}, {"flop": 0, "bytes": 4096}),
        ("input_pipeline", "torch", {}, {}),
    ],
)
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_case_is_measured_like_any_other(workload, implementation, change, work):
    pytest.importorskip("torch")
    case = Case(workload, replace(RIGHT[workload], **change), implementation)
    assert Case.from_json(case.to_json()) == case
    answer = measure_case(case, None, CPU)
    assert answer["outcome"] == "ok", answer
    assert work.items() <= answer["work"].items()
    assert answer["verification"]["compared"] > 0
