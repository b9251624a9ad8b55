"""Our CUDA matmul's way to the device: operands placed, kernel compiled, launches encoded; the device is a double."""

from typing import Any

import pytest

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.tiling import Schedule, Tile
from pyperf_suite.workloads.backends import CudaDevice
from pyperf_suite.workloads.matmul import MatmulParameters, matmul
from pyperf_suite.workloads.matmul.matmul import MATMUL
from pyperf_suite.workloads.operator import Launches
from pyperf_suite.workloads.workload import ExecutionContext

pytestmark = pytest.mark.slow

GPU = Device("cuda")


@pytest.fixture
def prepare(cuda, fake, nvrtc, tmp_path_factory, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYPERF_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "kernels"))
    # Made when a case is prepared: a test may change the double before.
    monkeypatch.setattr(matmul, "cuda_device", CudaDevice)

    def made(name: str, parameters: MatmulParameters, sets: int = 2) -> Launches:
        operator = MATMUL
        implementation = operator.implementation(name)
        implementation.validate(parameters)
        return implementation.prepare(parameters, operator.operands(parameters, 0), ExecutionContext(GPU, sets=sets))

    return made


def parameters(schedule: str = "data_parallel@132", tile: Tile | None = None, **changed: Any) -> MatmulParameters:
    values = {"m": 300, "n": 520, "k": 256, "dtype": "bfloat16", "layout": "TN"} | changed
    return MatmulParameters(schedule=Schedule.parse(schedule), tile=tile or Tile(128, 128, 64), **values)


def launched(launches, fake) -> str:
    fake.log()
    launches.launch(0)
    (line,) = [line for line in fake.log() if line.startswith("launch pyperf_gemm")]
    return line


@pytest.mark.parametrize("tile", ["128x256x64:c2", "256x128x64:c1x2"])
@pytest.mark.parametrize("policy", ["persistent", "stream_k"])
def test_no_more_workers_are_launched_than_clusters_that_run_at_once(prepare, fake, tile, policy):
    launches = prepare("cuda_sm90", parameters(f"{policy}@200", Tile.parse(tile), m=8192, n=8192, k=64), sets=1)
    assert "grid 132x1x1 " in launched(launches, fake)  # 66 pairs
    assert launches.kernel.details["slots"] == 132


@pytest.mark.parametrize(
    ("figures", "words"),
    [({"multiprocessors": 1}, "take a tile without a cluster"), ({"major": 8, "minor": 6}, "sm_80 kernel")],
)
def test_a_device_that_holds_no_cluster_at_once_or_is_no_hopper_says_what_to_take(prepare, fake, figures, words):
    fake.set(**figures)
    with pytest.raises(Unsupported, match=words):
        prepare("cuda_sm90", parameters("persistent@1", Tile.parse("128x128x64:c2")))


def test_a_multiprocessor_without_a_neighbour_gets_no_worker_of_a_pair(prepare, fake):
    fake.set(multiprocessors=131)
    launches = prepare("cuda_sm90", parameters("persistent@131", Tile.parse("128x128x64:c2"), m=4096, n=4096), sets=1)
    assert "grid 130x1x1 " in launched(launches, fake)


@pytest.mark.parametrize(
    ("m", "n", "tile"), [(4096, 4096, "128x256x64:c2"), (1024, 4096, "128x128x64"), (512, 8192, "128x128x64")]
)
def test_a_pair_of_the_largest_tiles_is_the_default_where_every_worker_gets_one(m, n, tile):
    requested = MatmulParameters(m, n, 4096, Schedule("persistent", 132), dtype="bfloat16", layout="TN")
    assert str(MATMUL.implementation("cuda_sm90").tile(requested)) == tile


@pytest.mark.parametrize("name", ["cuda_sm80", "triton"])
def test_a_cluster_is_refused_by_kernels_that_launch_none(name):
    with pytest.raises(UserError, match=r"launches no clusters, but tile 128x128x64:c1x2"):
        MATMUL.implementation(name).validate(parameters("persistent@8", Tile.parse("128x128x64:c1x2")))


@pytest.mark.parametrize(
    ("changed", "path"),
    [
        *(({"k": 252}, "8-byte"), ({"k": 254}, "4-byte"), ({"k": 255}, "predicated")),
        *(({"n": 516}, "8-byte"), ({"n": 519}, "predicated")),
    ],
    ids=str,
)
def test_the_narrowest_rows_of_all_operands_decide_the_path(prepare, changed, path):
    assert prepare("cuda_sm80", parameters(**changed)).kernel.path == path
    with pytest.raises(Unsupported, match="TMA needs rows"):
        prepare("cuda_sm90", parameters(**changed))
