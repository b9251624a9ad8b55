import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware import devices, nvml
from pyperf_suite.hardware.devices import CudaDriver, Device, Unavailable, open_library, resolve
from pyperf_suite.hardware.nvml import Nvml, heat_field

UUID = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"


def test_a_gpu_is_described_without_a_context(fake_cuda):
    driver = CudaDriver(fake_cuda(["NVIDIA H200"]))
    gpu = driver.gpu(0)
    assert driver.device_count() == 1
    assert driver.version() == "13.1"
    assert (gpu.name, gpu.uuid, gpu.compute_capability) == ("NVIDIA H200", UUID, (9, 0))
    assert (gpu.multiprocessors, gpu.memory_bytes) == (132, 150_110_011_392)
    assert CudaDriver(fake_cuda(["NVIDIA H200 MIG 1g.18gb"])).gpu(0).uuid.startswith("MIG-0001")


@pytest.mark.parametrize(("code", "words"), [(100, "finds no CUDA device"), (999, r"driver words \(CUresult 999\)")])
def test_a_driver_that_does_not_start_says_why(fake_cuda, code, words):
    with pytest.raises(Unavailable, match=words):
        CudaDriver(fake_cuda([], initialises=code))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (None, r"libnothing.so.1 cannot be opened, so there is no NVIDIA driver"),
        ("/nowhere/library.so", r"{variable}=/nowhere/library.so cannot be opened"),
    ],
)
@pytest.mark.parametrize("module", [devices, nvml])
def test_a_library_that_cannot_be_opened_is_named_and_an_override_is_not_passed_over(
    module, override, words, monkeypatch
):
    monkeypatch.delenv(module.OVERRIDE, raising=False)
    if override:
        monkeypatch.setenv(module.OVERRIDE, override)
    with pytest.raises(Unavailable, match=words.format(variable=module.OVERRIDE)):
        open_library(module.OVERRIDE, ["libm.so.6"] if override else ["libnothing.so.1", "libnothing.so"])


LOAD = {
    "utilization": 0.93,
    "memory_used_bytes": 41 << 30,
    "memory_total_bytes": 141 << 30,
    "energy_j": 1234.5,
    "pcie_bytes": (11, 13),
    "nvlink_bytes": (5 * 1024, 7 * 1024),
}
# A question about a GPU, the answer, and the answer where there is no such GPU.
ANSWERS = {
    "index": (3, None),
    "name": ("NVIDIA H200", None),
    "pci_address": ("0000:17:00.0", None),
    "settings": (
        {
            "power_limit_w": 700.0,
            "ecc": True,
            "persistence_mode": None,  # answered "not supported"
            "application_sm_clock_mhz": None,  # not in this library at all
            "maximum_sm_clock_mhz": 1980,
        },
        {},
    ),
    "readings": (
        {
            "sm_clock_mhz": 1755,
            "memory_clock_mhz": 3201,
            "power_w": 688.5,
            "temperature_celsius": 61,
            "throttle_reasons": ["power cap"],
        },
        {},
    ),
    "throttle_reasons": (["power cap"], None),
    "throttled_s": (
        {
            "power cap": 2.5,
            "thermal slowdown by software": 0.0,
            "thermal slowdown by hardware": 0.001,
            "power brake": 0.0,
        },
        None,
    ),
    "energy_j": (1234.5, None),
    "used_bytes": (41 << 30, None),
    "load": (LOAD, {}),
    "health": (
        {
            "compute_mode": "exclusive process",
            "default_power_limit_w": 700.0,
            "mig": True,
            "uncorrected_errors": 3,
            "remapping": "pending",
            "slowdown_celsius": 87,
        },
        {},
    ),
    "memory_errors": (
        {
            "corrected": 7,
            "uncorrected": 3,
            "corrected_ever": 19,
            "uncorrected_ever": 4,
            "rows_remapped_corrected": 2,
            "rows_remapped_uncorrected": 1,
            "pages_retired_corrected": 2,
            "pages_retired_uncorrected": 1,
        },
        {},
    ),
    "processes": (((41, 1 << 30), (42, 1 << 20)), None),
    "pcie": ({"generation": 3, "width": 8, "slot_generation": 4, "slot_width": 16, "card_generation": 5}, {}),
    "pcie_replays": (12, None),
    "nvlink": ("nvlink4x18", None),
    "nvlink_states": ((True,) * 18, ()),
    "nvlink_bytes": ((5 * 1024, 7 * 1024), None),
}


@pytest.mark.parametrize("question", ANSWERS)
def test_a_gpu_answers_in_units_and_words_and_one_that_is_not_there_with_nothing(fake_nvml, question):
    of_a_gpu, of_none = ANSWERS[question]
    assert getattr(Nvml(fake_nvml()), question)(UUID) == of_a_gpu
    assert getattr(Nvml(fake_nvml()), question)("unknown") == of_none


@pytest.mark.parametrize(
    ("driver", "field"),
    [
        ("550.54.14", 251),
        ("575.51", 251),
        ("580.65.06", None),
        ("580.82.07", 269),
        ("590.1", 269),
        ("r580", None),
        ("", None),
    ],
)
def test_counters_of_heat_have_the_numbers_of_the_driver_or_are_not_read(driver, field):
    assert heat_field(driver) == field


def test_activity_is_that_since_the_last_call_in_shares_and_bytes(fake_nvml):
    manager = Nvml(fake_nvml())
    assert manager.activity(UUID) == {}
    expected = {"sm_activity": 0.4, "sm_occupancy": 0.12, "tensor_activity": 0.1, "pcie_bytes_per_s": 8 * 1024**2}
    for _ in range(3):
        assert manager.activity(UUID) == pytest.approx(expected)
    assert manager.activity("unknown") == {}


@pytest.fixture
def with_gpus(monkeypatch, fake_cuda):
    """with_gpus(2): a machine of two GPUs; with_gpus(None): one without an NVIDIA driver."""

    def there_are(count):
        found = Unavailable("there is no NVIDIA driver here") if count is None else CudaDriver(fake_cuda(["H"] * count))
        monkeypatch.setattr(devices, "driver", lambda: found)

    return there_are


@pytest.mark.parametrize(
    ("gpus", "requested", "device"),
    [
        *((None, name, Device("cpu")) for name in ("cpu", "auto", " CPU ")),
        *((2, name, Device("cuda", 0)) for name in ("auto", "cuda", "cuda:0")),
        *((2, str(device), device) for device in (Device("cpu"), Device("cuda", 1))),
    ],
)
def test_a_device_is_found_by_its_name_and_auto_is_the_first_gpu_or_the_cpu(with_gpus, gpus, requested, device):
    with_gpus(gpus)
    assert resolve(requested) == device


@pytest.mark.parametrize(
    ("gpus", "requested", "words"),
    [
        *((2, name, f"'{name}': .*auto, cpu, cuda or cuda:N") for name in ("", "gpu", "cuda:", "cuda:-1", "cuda:x")),
        *((2, name, f"'{name}': .*auto, cpu, cuda or cuda:N") for name in ("cpu:0", "tpu")),
        (2, "cuda:2", "'cuda:2'.* no CUDA device beyond cuda:1"),
        (0, "cuda:0", "there is no CUDA device: "),
        (None, "cuda:0", "'cuda:0'.* there is no NVIDIA driver here: .*cpu"),
    ],
)
def test_a_device_that_is_not_there_is_refused_with_those_that_are(with_gpus, gpus, requested, words):
    with_gpus(gpus)
    with pytest.raises(UserError, match=words):
        resolve(requested)
