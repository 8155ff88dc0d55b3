"""The machine: devices, links and how they are arranged.

Everything is in SI units and bytes; `costmodels.cluster_file` converts the units of a file once. Rates are what the vendor states;
`matmul_fraction`, `memory_fraction` and the rates of links are what programs reach. Every number of a preset has its source beside it in
`costmodels/profiles`. What this leaves out: unlike devices in one cluster, network topology above the node, and contention.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from costmodels.cluster_file import Section, names, read_preset, read_user_file
from costmodels.errors import HardwareError

BACKENDS = ("nccl", "gloo")
GIB = 2.0**30


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator. `peak_flop_per_s` pairs a dtype with its dense rate.

    `launch_s` is the least time between two operators (the host issues them one by one), `ramp_s` what a kernel costs before and after its
    steady state. `context_bytes` is taken by the driver, libraries and communicators; `fragmentation` is the part of the memory that the
    allocator cannot hand out.
    """

    name: str
    memory_bytes: int
    memory_bytes_per_s: float
    peak_flop_per_s: tuple[tuple[str, float], ...]
    launch_s: float
    ramp_s: float = 0.0
    matmul_fraction: float = 1.0
    memory_fraction: float = 1.0
    context_bytes: int = 0
    fragmentation: float = 0.0

    def peak(self, dtype: str) -> float:
        """FLOP/s of `dtype`; a dtype that is not listed (integers, bool, complex) runs at the float32 rate."""
        rates = dict(self.peak_flop_per_s)
        return rates.get(dtype, rates["float32"])


@dataclass(frozen=True, slots=True)
class Link:
    """What one device can send while it receives as much: a message costs `start_s + hops * latency_s + bytes / bytes_per_s`."""

    latency_s: float
    bytes_per_s: float
    start_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """`devices` like devices in nodes of `devices_per_node`. `intra` joins those of one node, `inter` is one device's share of the network
    between nodes, `host` its share of the way to the memory of the host, of which `host_memory_bytes` is its share. `sources` names the
    origin of every number of the file and takes no part in comparisons."""

    name: str
    device: Device
    devices: int
    devices_per_node: int
    intra: Link
    inter: Link
    host: Link
    host_memory_bytes: int
    backend: str = "nccl"
    calibrated: bool = False
    sources: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise HardwareError(f"cluster {self.name}: backend {self.backend!r} is unknown; use one of {', '.join(BACKENDS)}")
        _check_arrangement(self.devices, self.devices_per_node)

    @property
    def nodes(self) -> int:
        return self.devices // self.devices_per_node

    def with_devices(self, devices: int, devices_per_node: int | None = None) -> Cluster:
        """The same machine with another number of devices. Fewer devices than a node has are one smaller node.

        Raises HardwareError if `devices` is not a multiple of `devices_per_node`.
        """
        per_node = self.devices_per_node if devices_per_node is None else devices_per_node
        if devices_per_node is None and 0 < devices < per_node:
            per_node = devices
        return replace(self, devices=devices, devices_per_node=per_node)

    def digest(self) -> str:
        """`sha256:` and 64 hex digits over everything that changes a prediction (so not over the sources)."""
        content = {key: value for key, value in asdict(self).items() if key != "sources"}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _check_arrangement(devices: int, per_node: int) -> None:
    if devices < 1 or per_node < 1:
        raise HardwareError(f"{devices} devices in nodes of {per_node}: both must be at least 1")
    if devices < per_node:
        raise HardwareError(f"{devices} devices are fewer than the {per_node} of one node; give devices-per-node={devices}")
    if devices % per_node:
        below, above = devices // per_node * per_node, (devices // per_node + 1) * per_node
        raise HardwareError(f"{devices} devices do not fill nodes of {per_node}; use {below} or {above} devices, or other devices-per-node")


def preset_names() -> tuple[str, ...]:
    """The machines that come with the package."""
    return names()


def preset(name: str) -> Cluster:
    """One node of a known machine. Raises HardwareError that lists the known ones."""
    return _cluster(read_preset(name))


def load_cluster(path: Path) -> Cluster:
    """The cluster described in a JSON file; `costmodels/README.md` shows its keys.

    Raises HardwareError that names the file and the key.
    """
    return _cluster(read_user_file(path))


def _cluster(section: Section) -> Cluster:
    per_node = section.integer("devices_per_node")
    host = section.section("host")
    cluster = Cluster(
        name=section.text("name"),
        device=_device(section.section("device")),
        devices=section.integer("devices", default=per_node),
        devices_per_node=per_node,
        intra=_link(section.section("intra")),
        inter=_link(section.section("inter")),
        host=_link(host),
        host_memory_bytes=round(host.number("memory_gib", scale=GIB)),
        backend=section.text("backend"),
        calibrated=section.flag("calibrated"),
        sources=section.sources(),
    )
    section.finish()
    return cluster


def _device(section: Section) -> Device:
    return Device(
        name=section.text("name"),
        memory_bytes=round(section.number("memory_gib", scale=GIB)),
        memory_bytes_per_s=section.number("memory_gb_per_s", scale=1e9),
        peak_flop_per_s=section.numbers("peak_tflop_per_s", needed="float32", scale=1e12),
        launch_s=section.number("launch_us", scale=1e-6, least=0.0),
        ramp_s=section.number("ramp_us", scale=1e-6, least=0.0),
        matmul_fraction=section.number("matmul_fraction", most=1.0),
        memory_fraction=section.number("memory_fraction", most=1.0),
        context_bytes=round(section.number("context_gib", scale=GIB, least=0.0)),
        fragmentation=section.number("fragmentation", least=0.0, most=0.5),
    )


def _link(section: Section) -> Link:
    return Link(
        latency_s=section.number("latency_us", scale=1e-6, least=0.0),
        bytes_per_s=section.number("gb_per_s", scale=1e9),
        start_s=section.number("start_us", scale=1e-6, least=0.0),
    )
