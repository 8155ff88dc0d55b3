"""A machine with round numbers: 100 FLOP/s, 10 bytes/s of memory, links of 8 and 2 bytes/s."""

from __future__ import annotations

from costmodels.hardware import Cluster, Device, Link

DEVICE = Device(
    "toy", 1000, 10.0, (("bfloat16", 400.0), ("float32", 100.0)), launch_s=0.5, ramp_s=0.25, matmul_fraction=0.5, memory_fraction=0.8
)


def toy(*, devices: int, per_node: int, backend: str = "nccl") -> Cluster:
    """Latencies 1 s inside a node and 10 s between nodes; starting costs 0.5 s and 5 s."""
    return Cluster(
        "toy", DEVICE, devices, per_node, Link(1.0, 8.0, 0.5), Link(10.0, 2.0, 5.0), Link(0.0, 4.0, 1.0), host_memory_bytes=1, backend=backend
    )
