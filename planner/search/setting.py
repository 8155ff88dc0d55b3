"""What all candidates of one search share: cluster, precision, memory limit."""

from __future__ import annotations

from math import prod

from costmodels.hardware import Cluster
from planner.ir.family import GraphFamily
from planner.ir.graph import DTYPE_BYTES
from planner.ir.options import Options
from planner.search.evaluate import Makespan, Setting
from planner.search.price import Precision


def setting_of(family: GraphFamily, cluster: Cluster, options: Options, makespan_s: Makespan) -> Setting:
    """The memory limit is the device's, lowered by the options; gradients are reduced in the parameters' dtype unless compute differs."""
    precision = Precision(DTYPE_BYTES[family.dtype], DTYPE_BYTES[family.compute_dtype], DTYPE_BYTES[reduce_dtype(family, options)])
    buffers = sum(prod(buffer.shape) * DTYPE_BYTES[buffer.dtype] for buffer in family.low.buffers)
    limit = min(cluster.device.memory_bytes, options.memory_bytes or cluster.device.memory_bytes)
    return Setting(cluster, precision, buffers, float(limit), makespan_s, tp_is_pinned="tp" in dict(options.mesh))


def reduce_dtype(family: GraphFamily, options: Options) -> str:
    """The dtype of gradient reductions: asked for where the model computes in another dtype than it stores, else the parameters' own."""
    return options.reduce_dtype if family.compute_dtype != family.dtype else family.dtype
