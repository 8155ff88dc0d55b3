"""Collectives: values by hand, monotone costs, groups on nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.collective import KINDS, Group, collective_s, group, host_s, p2p_s
from costmodels.errors import HardwareError
from costmodels.hardware import Cluster, preset, preset_names
from tests.costmodels.machines import toy

kinds = st.sampled_from(KINDS)
clusters = st.sampled_from(preset_names()).map(lambda name: preset(name).with_devices(256))
sizes = st.floats(0, 1e12)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("all_gather", 0.5 + 3 * 1 + 480 / 8),
        ("reduce_scatter", 0.5 + 3 * 1 + 480 / 8),
        ("all_reduce", 0.5 + 2 * (3 * 1 + 480 / 8)),
        ("broadcast", 0.5 + 3 * 1 + 640 / 8),
        ("all_to_all", 0.5 + 3 * 1 + 480 / 8),
    ],
)
def test_four_ranks_of_one_node_by_hand(kind: str, expected: float) -> None:
    """640 bytes over 4 ranks: 3 hops of 1 s, 3/4 of the bytes at 8 bytes/s, 0.5 s to start."""
    assert expected == collective_s(kind, 640, group=Group(4, 1), cluster=toy(devices=4, per_node=4))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("all_gather", (0.5 + 1 + 320 / 8) + (5 + 10 + 160 / 2)),
        ("all_reduce", (0.5 + 2 * (1 + 320 / 8)) + (5 + 2 * (10 + 160 / 2))),
        ("all_to_all", (0.5 + 1 + 160 / 8) + (5 + 2 * 10 + 320 / 2)),
        ("broadcast", (0.5 + 1 + 640 / 8) + (5 + 10 + 640 / 2)),
    ],
)
def test_two_nodes_of_two_by_hand(kind: str, expected: float) -> None:
    """Inside the node on all 640 bytes, between the nodes on the half that each member carries."""
    assert expected == collective_s(kind, 640, group=Group(4, 2), cluster=toy(devices=4, per_node=2))


def test_small_all_reduce_over_many_nodes_uses_a_tree() -> None:
    """64 nodes: a ring has 126 hops of 10 s, a tree 12."""
    assert 5 + 12 * 10 + 2 * 2 / 2 == collective_s("all_reduce", 2, group=Group(64, 64), cluster=toy(devices=64, per_node=1))


def test_gloo_runs_all_to_all_as_all_gather_of_every_input() -> None:
    """640 bytes on each of 4 ranks are an all_gather of 2560."""
    cluster = toy(devices=4, per_node=4, backend="gloo")
    assert 0.5 + 3 * 1 + 3 / 4 * 2560 / 8 == collective_s("all_to_all", 640, group=Group(4, 1), cluster=cluster)


@given(kinds, sizes, clusters)
def test_one_rank_costs_nothing(kind: str, nbytes: float, cluster: Cluster) -> None:
    assert 0.0 == collective_s(kind, nbytes, group=Group(1, 1), cluster=cluster)


@given(kinds, sizes, sizes, st.integers(1, 8), st.integers(1, 32), clusters)
def test_more_bytes_never_take_less_time(kind: str, nbytes: float, more: float, per_node: int, nodes: int, cluster: Cluster) -> None:
    ranks = Group(per_node * nodes, nodes)
    assert collective_s(kind, nbytes, group=ranks, cluster=cluster) <= collective_s(kind, nbytes + more, group=ranks, cluster=cluster)


@given(kinds, sizes, st.integers(1, 7), clusters)
def test_more_ranks_in_a_node_never_take_less_time(kind: str, nbytes: float, ranks: int, cluster: Cluster) -> None:
    fewer, more = (collective_s(kind, nbytes, group=Group(size, 1), cluster=cluster) for size in (ranks, ranks + 1))
    assert fewer <= more


@given(kinds, sizes, st.integers(1, 8), st.integers(1, 31), clusters)
def test_more_nodes_never_take_less_time(kind: str, nbytes: float, per_node: int, nodes: int, cluster: Cluster) -> None:
    fewer, more = (collective_s(kind, nbytes, group=Group(per_node * n, n), cluster=cluster) for n in (nodes, nodes + 1))
    assert fewer <= more * (1 + 1e-12)


@given(kinds, sizes, st.sampled_from((2, 4, 8)), clusters)
def test_a_group_inside_a_node_is_not_slower_than_one_rank_per_node(kind: str, nbytes: float, size: int, cluster: Cluster) -> None:
    """The same number of ranks on the faster links: every preset prefers a group inside a node."""
    inside, across = (collective_s(kind, nbytes, group=Group(size, nodes), cluster=cluster) for nodes in (1, size))
    assert inside <= across


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather() -> None:
    """On large messages, where starting does not count."""
    cluster = preset("h100").with_devices(64)
    parts = [collective_s(kind, 1e10, group=Group(64, 8), cluster=cluster) for kind in ("reduce_scatter", "all_gather")]
    assert sum(parts) == pytest.approx(collective_s("all_reduce", 1e10, group=Group(64, 8), cluster=cluster), rel=1e-3)


def test_public_measurement_is_met() -> None:
    """An all_reduce of 256 MiB on 8 A100 with NVSwitch: 2.3 ms (NCCL 2.27, aiconfigurator), within a fifth."""
    cluster = preset("a100-80g")
    assert 2.3e-3 == pytest.approx(collective_s("all_reduce", 2**28, group=Group(8, 1), cluster=cluster), rel=0.2)


@pytest.mark.parametrize(
    ("size", "stride", "expected"),
    [
        (1, 1, Group(1, 1)),
        (8, 1, Group(8, 1)),
        (4, 2, Group(4, 1)),
        (2, 4, Group(2, 1)),
        (16, 1, Group(16, 2)),
        (32, 1, Group(32, 4)),
        (4, 8, Group(4, 4)),
        (8, 4, Group(8, 4)),
        (2, 16, Group(2, 2)),
        (6, 1, Group(6, 2)),
        (3, 4, Group(3, 2)),
    ],
)
def test_groups_on_four_nodes_of_eight(size: int, stride: int, expected: Group) -> None:
    """Aligned groups fill nodes; groups of 6 straddle two, and so do 3 ranks 4 apart."""
    assert expected == group(toy(devices=32, per_node=8), size=size, stride=stride)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 6), st.integers(1, 4))
def test_a_group_spans_as_many_nodes_as_the_worst_placed_one(size: int, stride: int, per_node: int, outer: int) -> None:
    """Against enumeration of all groups along an axis."""
    world = size * stride * outer
    devices = -(-world // per_node) * per_node
    groups = [
        {(block * size * stride + inner + member * stride) // per_node for member in range(size)}
        for block in range(devices // (size * stride) + per_node)
        for inner in range(stride)
    ]
    expected = min(max(map(len, groups)), devices // per_node)
    assert Group(size, expected) == group(toy(devices=devices, per_node=per_node), size=size, stride=stride)


def test_messages() -> None:
    """p2p in and between nodes, and to the host."""
    cluster = toy(devices=8, per_node=4)
    assert 0.5 + 1 + 10 == p2p_s(80, same_node=True, cluster=cluster)
    assert 5 + 10 + 40 == p2p_s(80, same_node=False, cluster=cluster)
    assert 1 + 20 == host_s(80, cluster=cluster)


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(HardwareError, match="collective 'gossip' is unknown; known are all_reduce, all_gather"):
        collective_s("gossip", 1, group=Group(2, 1), cluster=preset("h100"))
