"""The suite run to the end where there is no GPU: on the double of libcuda, which runs what its NVRTC compiles.

Products are verified as on a GPU; times are of the double's model. A fault on the way there fails.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
NO_TORCH = r"This torch (", "cannot use the GPU."
EVENT_S = 500e-9  # event_ns of fake_libcuda.c
TILES = ("tile=64x64x64", "k=128", "across=1", "waves=1", "offset=0", "inside=0", "schedule=data_parallel")


def records(folder: Path) -> list[dict[str, Any]]:
    [journal] = folder.rglob("records.jsonl")
    return [each for each in map(json.loads, journal.read_text().splitlines()) if each["kind"] == "timing"]


def outcomes(records: list[dict[str, Any]]) -> Counter[tuple[str, str]]:
    """Count outcomes by implementation. An ok case is verified, an unsupported one has one sentence."""
    for record in records:
        if record["outcome"] == "ok":
            assert record["verification"]["passed"], record
        else:
            assert record["outcome"] == "unsupported", record["reason"]
            assert "\n" not in record["reason"]
            allowed = (NO_TORCH[1], "or take an sm_80 kernel.", "or take triton.")
            assert record["reason"].endswith(allowed), record["reason"]
    return Counter((each["case"]["implementation"], each["outcome"]) for each in records)


def measured(run, folder: Path, *arguments: str) -> Counter[tuple[str, str]]:
    done = run("-m", "pyperf_suite", *arguments, "--device", "cuda:0", "--results", str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    return outcomes(records(folder))


def test_the_doctor_finds_a_gpu_that_is_named_a_fake(run):
    done = run("-m", "pyperf_suite", "doctor", "--all")
    assert "Traceback" not in done.stdout + done.stderr
    (kind,) = (line.split(None, 3) for line in done.stdout.splitlines() if line.split()[1:3] == ["cuda:0", "kind"])
    assert kind[0] == "ok"
    assert kind[3].startswith("Fake H200, compute capability 9.0, 4 SMs")


def test_tile_and_wave_cliffs_are_measured_on_verified_products(run, tmp_path):
    axes = [word for axis in TILES for word in ("-a", axis)]
    found = measured(run, tmp_path, "run", "tile_wave", *axes, "-a", "implementation=cuda_sm90,cuda_sm80")
    assert found == {("cuda_sm90", "ok"): 4, ("cuda_sm80", "ok"): 4, ("cublas", "unsupported"): 4}


def test_sizes_that_tma_cannot_take_are_unsupported_and_right_on_the_other_kernel(run, tmp_path):
    axes = ("implementation=cuda_sm90,cuda_sm80,triton", "base=square:64x128x128", "along=n,k", "tile=64x64x64")
    found = measured(run, tmp_path, "run", "alignment", *(word for axis in axes for word in ("-a", axis)))
    assert found["cuda_sm80", "ok"] == 5
    assert (found["cuda_sm90", "ok"], found["cuda_sm90", "unsupported"]) == (3, 2)
    assert found["triton", "unsupported"] == 5
    assert found["cublas", "unsupported"] == 5


def test_attention_is_measured_on_verified_results(run, tmp_path):
    axes = (
        *("implementation=cuda_sm90,sdpa_default", "hidden=128", "heads=2", "head_dim=72,100", "heads_of_head_dim=2"),
        *("seq=130", "batch=1", "mask=causal,full", "kv_ratio=1,2", "phase=forward", "varied_splits=1"),
    )
    found = measured(run, tmp_path, "run", "attention_heads", *(word for axis in axes for word in ("-a", axis)))
    assert (found["cuda_sm90", "ok"], found["cuda_sm90", "unsupported"]) == (4, 1)


def test_pytest_measures_the_cases_of_a_probe(run, tmp_path):
    axes = [word for axis in TILES for word in ("--suite-axis", f"tile_wave.{axis}")]
    chosen = ("-k", "tile_wave", *axes, "--suite-device", "cuda:0", "--suite-results", str(tmp_path))
    done = run("-m", "pytest", "--benchmark-only", "-p", "no:cacheprovider", *chosen, folder=ROOT)
    assert done.returncode == 0, done.stdout
    assert " 4 passed, 4 skipped" in done.stdout
    assert outcomes(records(tmp_path)) == {("cuda_sm90", "ok"): 4, ("cublas", "unsupported"): 4}


EXAMPLE = ROOT / "examples" / "your_kernel" / "bench_vector_add.py"


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_a_users_cuda_kernel_without_torch_for_gpus_is_unsupported_in_one_sentence(run, tmp_path, library):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this torch can use a GPU")
    (tmp_path / "bench.py").write_text(EXAMPLE.read_text().replace("import torch", f"import {library}"))
    done = run(
        *("-m", "pyperf_suite", "run", "bench.py", "--device", "cuda:0", "--results", str(tmp_path)), folder=tmp_path
    )
    assert "Traceback" not in done.stdout + done.stderr
    assert outcomes(records(tmp_path)) == {("add", "unsupported"): 1}


# A kernel in plain CUDA on the double; the program prints its result.
PLAIN = '''
import sys
import numpy as np
from pyperf_suite.workloads.backends import cuda_device
device = cuda_device(0)
native = device.native
SOURCE = """
extern "C" __global__ void scale(float* x, float by, int n) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < n) x[at] *= by;
}
extern "C" __global__ void __launch_bounds__(256) sum(const float* x, float* out, int n) {
    extern __shared__ float values[];
    __shared__ float parts[8];
    float mine = 0;
    for (int at = threadIdx.x; at < n; at += blockDim.x) mine += x[at];
    values[threadIdx.x] = mine;
    __syncthreads();
    mine = values[threadIdx.x ^ 1];
    for (int distance = 16; distance > 0; distance /= 2) mine += __shfl_down_sync(~0u, mine, distance);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int warp = 0; warp < 8; ++warp) atomicAdd(out, parts[warp]);
}
"""
module = device.compile("plain.cu", SOURCE, {})
def memory(values):
    made = native.DeviceMemory(device.context, values.nbytes)
    made.write(values)
    return made
def launch(name, threads, *arguments, shared=0):
    kernel = device.kernel(module, name)
    native.Launch(kernel, (4 if name == "scale" else 1, 1, 1), (threads, 1, 1), list(arguments),
                  dynamic_shared_bytes=shared).run()
    device.context.synchronize()
x = memory(np.arange(1000, dtype=np.float32))
out = memory(np.zeros(1, np.float32))
address = np.uint64(x.address)
'''


CRASHES = {
    "null": 'launch("scale", 256, np.uint64(0), np.float32(2), np.int32(1000))',
    "behind its memory": 'launch("scale", 256, address + np.uint64(4096), np.float32(2), np.int32(1000))',
    "the host's": "host = np.zeros(1000, np.float32)\n"
    'launch("scale", 256, np.uint64(host.ctypes.data), np.float32(2), np.int32(1000))',
}


@pytest.mark.parametrize("doing", CRASHES.values(), ids=CRASHES)
def test_memory_that_is_not_the_devices_fails_in_a_kernel_and_the_process_goes_on(run, doing):
    tried = "".join(f"    {line}\n" for line in doing.splitlines())
    done = run("-c", f"{PLAIN}\ntry:\n{tried}except native.LaunchFailed as reason:\n    print(reason)")
    assert "CUDA_ERROR_ILLEGAL_ADDRESS (700)" in done.stdout, done.stderr


def test_more_threads_than_a_kernel_was_compiled_for_and_source_that_is_wrong_are_refused(run):
    done = run("-c", PLAIN + 'launch("sum", 512, address, np.uint64(out.address), np.int32(1000))')
    assert "asked for with blocks of 512 threads and can have 1 to 256" in done.stderr
    done = run("-c", PLAIN + 'device.compile("wrong.cu", "extern \\"C\\" __global__ void wrong() { no; }", {})')
    assert "CompileError: NVRTC 13.99 cannot compile wrong.cu for sm_90a" in done.stderr
    assert "'no' was not declared" in done.stderr.replace("‘", "'").replace("’", "'")


# One product, measured as a worker does, with something put wrong before.
PRODUCT = """
import json
from pyperf_suite.hardware.devices import Device
from pyperf_suite.kernels import gemm_sm80, gemm_sm90
from pyperf_suite.laws.tiling import Schedule, Tile
from pyperf_suite.runner.measuring import measure_case
from pyperf_suite.runner.profiles import QUICK
from pyperf_suite.record.case import Case
from pyperf_suite.workloads.backends import cuda_device
from pyperf_suite.workloads.matmul import MatmulParameters
from dataclasses import replace
name, tile, policy = "cuda_sm90", "64x64x64", "data_parallel@4"
native = cuda_device(0).native
launch, encode, one, other = native.Launch, native.tensor_map, gemm_sm90.Specialisation, gemm_sm80.Specialisation
maps, packed, other_packed = one.tensor_maps, one.arguments, other.arguments
def exchanged(values, first, second):
    values = list(values)
    values[first], values[second] = values[second], values[first]
    return values
def changed_map(which, **fields):
    def tensor_maps(*arguments):
        return tuple(replace(each, **fields) if at == which else each for at, each in enumerate(maps(*arguments)))
    one.tensor_maps = tensor_maps
"""
MEASURE = """
parameters = MatmulParameters(64, 256, 128, Schedule.parse(policy), Tile.parse(tile), "bfloat16", layout="TN")
answer = measure_case(Case("matmul", parameters, name), QUICK.effort, Device("cuda"))
verification = answer.get("verification") or {}
print(json.dumps([answer["outcome"], verification.get("reason") or answer.get("reason") or ""]))
"""
CLUSTER = 'tile = "64x64x64:c2"\n'
SHARED = 'policy = "stream_k@3"\n'
RIGHT = {
    "TMA": "",
    "a cluster": CLUSTER,
    "units that share tiles": SHARED,
    "sm_80": 'name = "cuda_sm80"',
}  # fmt: skip
WRONG_VALUES = "Wrong result before timing: "
LOST = "CUDA_ERROR_LAUNCH_FAILED (719)"
ASTRAY = "CUDA_ERROR_ILLEGAL_ADDRESS (700)"
WRONG = {
    "a map's swizzle": ("changed_map(0, swizzle_bytes=0)", WRONG_VALUES),
    "a map's box": ("changed_map(1, box=(64, 32))", LOST),
    "a map's rows": ("changed_map(1, stride_bytes=512)", (ASTRAY, WRONG_VALUES)),
    "a map's columns": ("changed_map(0, shape=(64, 64))", WRONG_VALUES),
    "maps of A and B in the wrong order": (
        "one.arguments = lambda self, *given: exchanged(packed(self, *given), 0, 1)", (WRONG_VALUES, LOST)
    ),
    "maps of B and C in the wrong order": (
        "one.arguments = lambda self, *given: exchanged(packed(self, *given), 1, 2)",
        (WRONG_VALUES, "not finite", LOST),
    ),
    "workspace and flags in the wrong order": (
        SHARED + "one.arguments = lambda self, *given: exchanged(packed(self, *given), 4, 5)", (LOST, ASTRAY)
    ),
    "schedule before the map of C": (
        "one.arguments = lambda self, *given: exchanged(packed(self, *given), 2, 3)", "has 84 bytes and its parameter"
    ),
    "A and C in the wrong order": (
        'name = "cuda_sm80"\nother.arguments = lambda self, *given: exchanged(other_packed(self, *given), 0, 2)',
        (WRONG_VALUES, "not finite", LOST, ASTRAY),
    ),
    "M and K in the wrong order": (
        'name = "cuda_sm80"\nother.arguments = lambda self, *given: exchanged(other_packed(self, *given), 6, 8)',
        (WRONG_VALUES, "not finite", LOST, ASTRAY),
    ),
    "a cluster launched as single blocks": (
        CLUSTER + "native.Launch = lambda *given, cluster=None, **named: launch(*given, **named)", LOST
    ),
    "a cluster launched as one twice as large": (
        CLUSTER + "native.Launch = lambda *given, cluster=(1, 1, 1), **named: "
        "launch(*given, cluster=(2 * cluster[0], 1, 1), **named)", (LOST, WRONG_VALUES),
    ),
    "too little shared memory": (
        "native.Launch = lambda *given, dynamic_shared_bytes=0, **named: "
        "launch(*given, dynamic_shared_bytes=dynamic_shared_bytes // 2, **named)", LOST
    ),
}  # fmt: skip


def answered(run, before: str) -> tuple[str, str]:
    done = run("-c", PRODUCT + before + MEASURE)
    assert done.returncode == 0, done.stderr
    outcome, reason = json.loads(done.stdout.splitlines()[-1])
    return outcome, reason


@pytest.mark.parametrize("before", RIGHT.values(), ids=RIGHT)
def test_a_product_is_right(run, before):
    assert answered(run, before)[0] == "ok"


@pytest.mark.parametrize(("before", "why"), WRONG.values(), ids=WRONG)
def test_a_product_fails_with(run, before, why):
    outcome, reason = answered(run, before)
    assert outcome == ("unsupported" if "its parameter" in why else "failed"), reason
    assert any(each in reason for each in ((why,) if isinstance(why, str) else why)), reason
