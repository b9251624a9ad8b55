import pytest

from pyperf_suite.hardware.devices import Device, gpus
from pyperf_suite.laws.tiling import Schedule, Tile
from pyperf_suite.record.case import Case
from pyperf_suite.runner.measuring import measure_case
from pyperf_suite.runner.profiles import QUICK
from pyperf_suite.workloads.matmul import LAYOUTS, MatmulParameters

pytestmark = pytest.mark.gpu

GPU = Device("cuda")
SHAPES = [(64, 64, 64), (300, 520, 256), (1000, 1000, 1000), (2048, 1536, 4096)]


def implementations() -> list[str]:
    """Implementations that have kernels for the first device here."""
    found = gpus()
    hopper = bool(found) and found[0].compute_capability == (9, 0)
    return ["cuda_sm80", "triton", *(["cuda_sm90"] if hopper else [])]


def measured(implementation: str, schedule: str, tile: Tile | None, **changed: object) -> dict:
    values = {"m": 300, "n": 520, "k": 256, "dtype": "bfloat16", "layout": "TN"} | changed
    parameters = MatmulParameters(schedule=Schedule.parse(schedule), tile=tile, **values)
    return measure_case(Case("matmul", parameters, implementation), QUICK.effort, GPU)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("schedule", ["data_parallel@64", "persistent@64", "split_k(2)@64", "stream_k@64"])
@pytest.mark.parametrize("implementation", implementations())
def test_each_kernel_is_right_and_timed_in_every_schedule(implementation, schedule, shape):
    if schedule.startswith("split_k") and shape[2] <= 64:
        schedule = "split_k(1)@64"
    m, n, k = shape
    answer = measured(implementation, schedule, Tile(128, 128, 64), m=m, n=n, k=k)
    assert answer["outcome"] == "ok", answer["reason"]
    assert answer["metrics"]["time"]["value"] > 0
    assert answer["kernel"]["details"]["registers"] > 0


@pytest.mark.parametrize("schedule", ["data_parallel@132", "persistent@132", "stream_k@132"])
@pytest.mark.parametrize("tile", ["128x256x64:c2", "128x256x64:s3:c2", "256x128x64:c1x2"])
@pytest.mark.parametrize("shape", [(300, 520, 256), (2048, 4096, 1024)], ids=str)
def test_clusters_are_right_and_no_more_workers_than_run_at_once(schedule, tile, shape):
    if "cuda_sm90" not in implementations():
        pytest.skip("this device has no kernel of ours that is launched in clusters")
    m, n, k = shape
    answer = measured("cuda_sm90", schedule, Tile.parse(tile), m=m, n=n, k=k)
    assert answer["outcome"] == "ok", answer["reason"]
    details = answer["kernel"]["details"]
    assert details["tile"] == tile
    assert schedule.startswith("data_parallel") or details["grid"] <= details["slots"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("implementation", [*implementations(), "cublas"])
def test_each_kernel_takes_every_layout_and_type(implementation, dtype, layout):
    library = implementation == "cublas"
    schedule, tile = ("library@1", None) if library else ("persistent@64", Tile(128, 128, 64))
    # 304: of a transposed A, as of the others, TMA takes rows of whole 16 bytes.
    answer = measured(implementation, schedule, tile, dtype=dtype, layout=layout, m=304, k=512)
    assert answer["outcome"] == "ok", answer["reason"]


def test_the_multiprocessors_clock_is_read_with_the_time():
    answer = measured("cublas", "library@1", None, m=4096, n=4096, k=4096)
    assert answer["outcome"] == "ok", answer["reason"]
    assert 2e8 < answer["metrics"]["sm_clock"]["value"] < 4e9
    assert answer["kernel"]["details"]["launched"]


@pytest.mark.parametrize("dtype", ["tfloat32", "int8", "float8_e4m3fn"])
@pytest.mark.parametrize("implementation", ["cublas", "cublas_padded", "triton"])
def test_types_of_tensor_cores_alone_are_right_wherever_the_device_takes_them(implementation, dtype):
    library = implementation != "triton"
    schedule, tile = ("library@1", None) if library else ("persistent@64", Tile(128, 128, 64))
    changed = {"m": 257, "n": 519, "k": 250, "pad_to": 16} if implementation == "cublas_padded" else {}
    if dtype == "float8_e4m3fn":
        changed = {"n": 528} | changed  # torch._scaled_mm takes multiples of 16
    answer = measured(implementation, schedule, tile, dtype=dtype, **changed)
    if dtype == "float8_e4m3fn" and gpus()[0].compute_capability < (8, 9):
        assert answer["outcome"] != "ok"
    else:
        assert answer["outcome"] == "ok", answer["reason"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", [(257, 520, 256), (256, 519, 256), (256, 520, 255), (255, 513, 257)], ids=str)
def test_a_padded_product_is_right_whatever_is_padded(sizes, layout):
    m, n, k = sizes
    answer = measured("cublas_padded", "library@1", None, m=m, n=n, k=k, layout=layout, pad_to=64)
    assert answer["outcome"] == "ok", answer["reason"]
    assert len(answer["kernel"]["details"]["launched"]) > 1


@pytest.mark.parametrize(
    ("implementation", "changed", "words"),
    [
        ("cuda_sm90", {}, "16 bytes"),
        ("cublas", {"dtype": "int8"}, "torch._int_mm refuses 300x520x255 of int8 in layout TN: "),
    ],
)
def test_what_a_kernel_cannot_take_is_unsupported_with_the_limit(implementation, changed, words):
    if implementation not in ("cublas", *implementations()):
        pytest.skip("this device has no TMA kernel of ours")
    schedule, tile = ("library@1", None) if implementation == "cublas" else ("persistent@64", Tile(128, 128, 64))
    answer = measured(implementation, schedule, tile, k=255, **changed)
    assert answer["outcome"] == "unsupported"
    assert words in answer["reason"]


def test_our_kernels_report_the_path_that_rows_allow():
    paths = {
        k: measured("cuda_sm80", "persistent@64", Tile(128, 128, 32), k=k)["kernel"]["path"]
        for k in (256, 252, 254, 255)
    }
    assert paths == {256: "16-byte", 252: "8-byte", 254: "4-byte", 255: "predicated"}
    assert measured("triton", "persistent@64", Tile(128, 128, 64), k=255)["kernel"]["path"] == "addresses"
    if "cuda_sm90" in implementations():
        assert measured("triton", "persistent@64", Tile(128, 128, 64))["kernel"]["path"] == "descriptors"
        assert measured("cuda_sm90", "persistent@64", Tile(128, 128, 64))["kernel"]["path"] == "tma"
