"""Which machine a plan is for: the named one, else the GPUs of this machine, else the preset h100."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from costmodels.errors import HardwareError
from costmodels.hardware import Cluster, load_cluster, preset, preset_names

ASSUMED = "h100"


@dataclass(frozen=True, slots=True)
class Machine:
    """A cluster, and how it came to be chosen."""

    cluster: Cluster
    origin: str

    def __str__(self) -> str:
        cluster = self.cluster
        return f"planning for {cluster.devices} x {cluster.name}, {cluster.devices_per_node} per node ({self.origin})"


@dataclass(frozen=True, slots=True)
class Found:
    """The GPUs of this machine."""

    name: str
    memory_bytes: int
    count: int


def choose(named: str | None, *, gpus: int, gpus_per_node: int | None) -> Machine:
    """The machine with `gpus` devices.

    Raises HardwareError for an unknown name, an unusable file, or devices that do not fill nodes.
    """
    if named is not None:
        base, origin = _named(named), "as asked"
    elif found := gpus_here():
        base, origin = nearest(found), f"the nearest preset to the {found.count} x {found.name} here"
        gpus_per_node = gpus_per_node or (found.count if gpus % found.count == 0 else None)
    else:
        base, origin = preset(ASSUMED), "assumed, as this machine has no GPU; --cluster names another"
    return Machine(base.with_devices(gpus, gpus_per_node), origin)


def gpus_here() -> Found | None:
    """The GPUs that torch sees; None where there are none."""
    import torch

    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(0)
    return Found(properties.name, properties.total_memory, torch.cuda.device_count())


def nearest(found: Found) -> Cluster:
    """The preset of the same make (`A100` in `NVIDIA A100-SXM4-40GB`) with the nearest memory; of any make if none is the same."""
    candidates = [preset(name) for name in preset_names()]
    gpus = [cluster for cluster in candidates if cluster.backend == "nccl"]
    same = [cluster for cluster in gpus if cluster.name.split("-")[0] in found.name.lower()]
    return _nearest_memory(same or gpus, found.memory_bytes)


def _nearest_memory(clusters: Sequence[Cluster], memory_bytes: int) -> Cluster:
    return min(clusters, key=lambda cluster: abs(cluster.device.memory_bytes - memory_bytes))


def _named(name: str) -> Cluster:
    if name in preset_names():
        return preset(name)
    path = Path(name)
    if path.suffix == ".json" or path.exists():
        return load_cluster(path)
    raise HardwareError(f"cluster {name!r} is neither a preset ({', '.join(preset_names())}) nor a .json file that describes a machine")
