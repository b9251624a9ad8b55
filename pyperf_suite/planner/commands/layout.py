"""`pyperf-suite layout`: how to cut the training of a model over the GPUs of a cluster, the fastest way first."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import click

from pyperf_suite.cli.options import Finite, all_option, json_option, options
from pyperf_suite.errors import UserError
from pyperf_suite.planner.commands.model_options import (
    Gibibytes,
    answer,
    gpu_options,
    model_options,
    requested_gpu,
    requested_model,
    value_options,
)

USUAL_NODE = 8
# GB200 and GB300: in published runs 64 of a rack's 72.
RACK, RACK_USED = 72, 64
GPUS = "Number of GPUs in the cluster. Required unless --exactly or --compare is given. Example: --gpus 64."
COUNTS = {
    "gpus-per-node N": "GPUs in a node. Default: 8 (GB200, GB300: 64 or 72), or all. Example: --gpus-per-node 4.",
    "global-batch N": "Sequences of an iteration. Required. Example: --global-batch 512.",
    "shard-over N": "Ranks that ZeRO shares over, next to each other; the others have copies (HSDP, MiCS). Default: "
    "all of DP x CP. Example: --shard-over 8.",
}
CHOICES = {
    "link RATE": "Link between the GPUs of a node, one direction. Default: its data sheet's. Example: --link NVLink3.",
    "network RATE": "Rate at which each GPU sends out of its node, or bus bandwidths measured between nodes. Default: "
    "as the laws have it. Example: --network 400Gbps, or --network 1GB:180GB/s,1MB:20GB/s.",
    "framework NAME[,NAME]": "Framework that runs the step: megatron, fsdp1, fsdp2, torchtitan, deepspeed or ddp; of "
    "several each layout has the first that runs it. Default: the first of megatron, torchtitan (compiled FSDP2) and "
    "deepspeed under which anything surely fits. Example: --framework deepspeed.",
    "dtype NAME": "Dtype of products in layers: bf16, fp16, fp8, mxfp8 or nvfp4. Default: bf16, before Ampere fp16. "
    "Example: --dtype fp8.",
    "state-dtype NAME": "Dtype of the optimizer's states: fp32, or bf16, without a master copy (8 bytes a parameter). "
    "Default: fp32. Example: --state-dtype bf16.",
    "offload WHAT[,WHAT]": "What leaves the GPU: none, optimizer (to the CPU), cpu (parameters too) or nvme. Default: "
    "none, and where nothing surely fits the others too. Example: --offload none,optimizer.",
    "exactly LAYOUT": "Price only this layout, fitting or not; without zero ZeRO 1, or the --framework's own. Default: "
    "every layout. Example: --exactly dp=8,tp=4,pp=2,vp=1,zero=1,mb=1.",
}
# Options that hold an axis to one value, and their names in a layout as it is written.
FIXED_OPTIONS = (
    ("dp", "dp", "Data-parallel ranks", 8),
    ("tp", "tp", "Tensor-parallel ranks", 4),
    ("pp", "pp", "Stages of the pipeline", 2),
    ("virtual-pp", "vp", "Groups of layers in each stage (virtual PP)", 2),
    ("cp", "cp", "Ranks that share each sequence (CP)", 2),
    ("ep", "ep", "Ranks that share the experts (EP)", 8),
    ("zero", "zero", "Stage of ZeRO, 0 to 3", 1),
    ("micro-batch", "mb", "Sequences that a rank computes at a time", 1),
)
HOSTS = {
    "host-memory GIB": "Memory of the host for each GPU. Default: unknown, all fits. Example: --host-memory 256.",
    "host-bandwidth GB/S": "Bandwidth of the host's memory for each GPU. Default: of the maker's servers. Example: "
    "--host-bandwidth 50.",
    "nvme-bandwidth GB/S": "Bandwidth of the host's drives for each GPU. Default: of the maker's servers. Example: "
    "--nvme-bandwidth 3.",
}
BUDGETS = {
    "tokens N": "Tokens of the whole training, for the days that it takes. Default: none. Example: --tokens 2e12.",
    "price DOLLARS": "Price of a GPU an hour, for the cost of tokens. Default: none. Example: --price 2.5.",
}
# Options that are fields of a `Training` of the same name, and of a `Host`.
OF_TRAINING = ("sequence_parallel", "overlap", "library", "framework", "dtype", "shard_over", "state_dtype")
HOST_RATES = {"host_bandwidth": "host_bytes_per_s", "nvme_bandwidth": "nvme_bytes_per_s"}
POSITIVE = Finite(0, 1e6, min_open=True)


@click.command()
@model_options
@gpu_options
@options(
    *value_options({"gpus N": GPUS}, int),
    *value_options(COUNTS, click.IntRange(1, 1 << 24)),
    *value_options({"memory GIB": "Memory of a GPU. Default: its data sheet's. Example: --memory 80."}, Gibibytes()),
    *value_options(CHOICES),
    *(
        click.option(
            f"--{name}",
            key,
            type=click.IntRange(0 if name == "zero" else 1),
            metavar="N",
            help=f"{text}. Default: every value that divides. Example: --{name} {example}.",
        )
        for name, key, text, example in FIXED_OPTIONS
    ),
    click.option(
        "--recompute",
        type=click.Choice(("nothing", "attention", "layers")),
        help="What backward computes again. Default: each is tried. Example: --recompute layers.",
    ),
    *value_options(HOSTS, POSITIVE),
    *(
        click.option(f"--{name}/--no-{name}", default=True, help=f"{text}. Default: --{name}.")
        for name, text in (
            ("flash", "Whether attention is fused and keeps no scores"),
            ("sequence-parallel", "Whether TP cuts the sequence too (SP)"),
            ("overlap", "Whether gradients are sent during computation"),
        )
    ),
    click.option(
        "--compare",
        nargs=2,
        metavar="A B",
        help="Compare two layouts, as --exactly takes them: which is faster, and with what confidence. Default: none. "
        "Example: --compare dp=64 dp=32,tp=2.",
    ),
    *value_options(BUDGETS, Finite(0, 1e18, min_open=True)),
    click.option(
        "--top",
        type=click.IntRange(1, 1000),
        default=10,
        show_default=True,
        metavar="N",
        help="Number of rows of each list. Example: --top 3.",
    ),
    json_option(),
    all_option,
)
def layout(
    gpus: int | None,
    global_batch: int | None,
    exactly: str | None,
    compare: tuple[str, str] | None,
    top: int,
    as_json: bool,
    everything: bool,
    **options: Any,
) -> None:
    """Rank the ways to train a model on a cluster: DP, TP, PP, virtual PP, CP, EP, ZeRO, micro-batch, recompute.

    \b
    Examples:
      pyperf-suite layout --config config.json --gpu A100 --gpus 64 --gpus-per-node 8 --global-batch 512 --seq 4096
      pyperf-suite layout --config config.json --gpu H100 --gpus 256 --network 400Gbps --global-batch 1024 --json
      pyperf-suite layout --layers 32 --hidden 2560 --heads 32 --ffn 10240 --vocab 50304 --not-gated
          --gpu "A100 40GB" --gpus 16 --gpus-per-node 4 --global-batch 512 --seq 2048 --pp 1
    """  # noqa: D301 - click keeps the lines below \b as they are
    from pyperf_suite.planner.laws.collectives import network_of
    from pyperf_suite.planner.laws.training.offload import usual_host
    from pyperf_suite.planner.layout import report
    from pyperf_suite.planner.layout.grid import NAMED, Cluster, Training
    from pyperf_suite.planner.layout.plan import KEYS, given_layouts, planned, ranks_of
    from pyperf_suite.planner.layout.plan import exactly as priced_exactly
    from pyperf_suite.render.terminal import said_meanwhile

    if global_batch is None:
        raise UserError("--global-batch is missing: name how many sequences an iteration has.")
    take = options.pop
    spec, laws = requested_gpu(take("gpu"), take("calibration"), take("power"), take("memory_bandwidth"))
    if (link := take("link")) is not None:
        if laws is not spec:
            raise UserError(f"--link {link} was given with a calibration, which has its own links: leave one out.")
        spec = laws = replace(spec, link_bytes_per_s=_link(link))
    fixed = {KEYS[key]: value for _, key, *_ in FIXED_OPTIONS if (value := take(key)) is not None}
    if (recompute := take("recompute")) is not None:
        fixed["recompute"] = NAMED["recompute"].index(recompute)
    how = {name: value for name in OF_TRAINING if (value := take(name)) is not None}
    offload, framework, memory, network = take("offload"), how.get("framework"), take("memory"), take("network")
    named_node = take("gpus_per_node")
    budget, rates = (take("tokens"), take("price")), {name: take(name) for name in HOST_RATES}
    host = replace(
        usual_host(spec),
        memory_bytes=(gib := take("host_memory")) and gib * 2**30,
        **{HOST_RATES[name]: rate * 1e9 for name, rate in rates.items() if rate},
    )
    how |= {"fused_attention": take("flash"), "offloads": tuple(re.findall(r"[^,\s]+", offload or ""))}
    model, length, notes = requested_model(take("config"), take("seq"), options, take("family"))
    if gpus is None and not (exactly or compare):
        raise UserError("--gpus is missing: name how many there are in all.")
    if (exactly or compare) and (fixed or offload or (exactly and compare)):
        raise UserError("--exactly and --compare name whole layouts: leave out the other, and options of single axes.")
    training = Training(model, global_batch, length, **how)

    def cluster(count: int) -> Cluster:
        room = spec.memory_bytes if memory is None else memory * 2**30
        racked = RACK if count % RACK == 0 else RACK_USED  # of one NVLink domain all, or as many as runs take
        per_node = max(1, min(named_node or (racked if spec.name.startswith("GB") else USUAL_NODE), count))
        return Cluster(spec, count, per_node, room, None if network is None else network_of(network), host)

    if exactly or compare:
        exact = [
            priced_exactly(replace(training, framework=name), cluster(ranks_of(each)), laws, each)
            for name, each in given_layouts(compare or (str(exactly),), gpus, framework)
        ]
        found = report.findings_of_given(exact, budget, notes)
    else:
        with said_meanwhile(f"Predicting every way to share {gpus} GPUs"):
            found = report.findings_of_layouts(planned(training, cluster(gpus or 0), laws, fixed), top, budget, notes)
    answer("layout", found, as_json, everything)


def _link(rate: str) -> float:
    """Bytes/s, one direction, of what people call a link within a node."""
    from pyperf_suite.hardware.links import NVLINK, PCIE

    text = re.sub(r"[\s_-]", "", rate).lower()
    if named := re.fullmatch(r"(nvlink|pcie)(\d)", text):
        peaks = NVLINK if named[1] == "nvlink" else PCIE
        if int(named[2]) in peaks:
            return peaks[int(named[2])].gb_per_s * 1e9
    number = re.fullmatch(r"(\d+(?:\.\d+)?)gb/s", text)
    if number is None or not 0 < float(number[1]) <= 1e5:
        names = ", ".join([*(f"NVLink{n}" for n in NVLINK), *(f"PCIe{n}" for n in PCIE)])
        raise UserError(f"{rate[:40]!r} is no link within a node: write one of {names}, or a rate as in 300GB/s.")
    return float(number[1]) * 1e9
