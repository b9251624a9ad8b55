import pytest

from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.tiling import Schedule, Tile
from pyperf_suite.record.case import Case
from pyperf_suite.runner.measuring import measure_case
from pyperf_suite.workloads import operator
from pyperf_suite.workloads.attention import AttentionParameters
from pyperf_suite.workloads.backends import cuda_device
from pyperf_suite.workloads.matmul import MatmulParameters
from pyperf_suite.workloads.operands import Operand, Operands
from pyperf_suite.workloads.operator import DeviceMemory
from pyperf_suite.workloads.workload import ExecutionContext

pytestmark = pytest.mark.gpu

GPU = Device("cuda")
LIBRARY = Schedule("library", 1)
OURS = MatmulParameters(1000, 520, 256, Schedule("data_parallel", 64), Tile(128, 128, 32), "bfloat16", layout="NN")
CASES = {
    "product": Case("matmul", MatmulParameters(1000, 520, 256, LIBRARY, dtype="bfloat16", layout="TN"), "cublas"),
    "our memory": Case("matmul", OURS, "cuda_sm80"),
    "transposed": Case("matmul", MatmulParameters(256, 520, 1000, LIBRARY, dtype="float16", layout="NT"), "cublas"),
    "attention": Case("attention", AttentionParameters(2, 4, 64, 300, kv_heads=2, causal=True), "sdpa_math"),
    "gradients": Case("attention", AttentionParameters(2, 4, 64, 300, causal=True, backward=True), "sdpa_math"),
}


@pytest.mark.parametrize("dtype", ["float32", "tfloat32", "float16", "bfloat16", "float8_e4m3fn", "int8"])
@pytest.mark.parametrize("count", [1, 17, (1 << 22) + 5])
def test_a_device_makes_the_values_of_the_host(dtype, count):
    operands = Operands({"a": Operand((count,), dtype, stream=2)}, seed=2**63 + 5)
    for each in DeviceMemory(operands, ExecutionContext(GPU, sets=2), cuda_device(0)).sets:
        assert each["a"].read() == operands["a"].tobytes()


@pytest.mark.parametrize("name", CASES)
def test_both_references_find_a_case_right(name, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(operator, "HOST_FLOP", 1e18)
    answer = measure_case(CASES[name], None, GPU)
    if answer["outcome"] == "unsupported":
        pytest.skip(answer["reason"])
    assert answer["outcome"] == "ok", answer.get("reason")
    assert answer["verification"]["references"] == ["device", "host"]
