"""How long collectives take on a group of ranks.

`nbytes` is the size of the full tensor on one rank: the result of an all_gather, the input of a reduce_scatter, all_reduce or all_to_all,
the message of a broadcast. With n ranks, a link costs `start + hops * latency + sent / bandwidth`:

    all_gather, reduce_scatter   hops n-1      sent (n-1)/n * nbytes     ring
    all_reduce                   hops 2(n-1)   sent 2(n-1)/n * nbytes    ring
                                 hops 2 log2 n sent 2 * nbytes           tree, between nodes only; the faster of the two
    broadcast                    hops n-1      sent nbytes               pipelined ring
    all_to_all                   hops n-1      sent (n-1)/n * nbytes     pairwise

A group that spans nodes with m members in each runs in two levels: inside the node on the whole tensor, between nodes on 1/m of it, every
member using its own share of the network. Backend gloo runs all_to_all as an all_gather of every input, so it is priced as one.
Sources: Thakur, Rabenseifner, Gropp (2005) for the ring; Sanders, Speck, Traeff (2009) for the tree; NCCL for the two levels.
Costs rise with `nbytes`, with the size of a group inside a node, and with the number of nodes at fixed members per node; more members per
node may be faster, because they bring their own share of the network. Leaves out: contention between groups and the in-network reduction.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, gcd, log2

from costmodels.errors import HardwareError
from costmodels.hardware import Cluster, Link

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


@dataclass(frozen=True, slots=True)
class Group:
    """`size` ranks spread over `nodes` nodes."""

    size: int
    nodes: int

    @property
    def per_node(self) -> int:
        """Members in the fullest node."""
        return ceil(self.size / self.nodes)


def group(cluster: Cluster, *, size: int, stride: int) -> Group:
    """The group of `size` ranks whose numbers are `stride` apart; ranks fill node after node.

    Of all groups of a mesh axis the worst placed one counts: of groups of 3 in nodes of 4, the second one straddles two nodes.
    """
    per_node = cluster.devices_per_node
    if stride >= per_node:
        return Group(size, min(size, cluster.nodes))
    step = gcd(size * stride, per_node)
    latest_start = per_node - 1 if stride >= step else per_node - step
    nodes = (latest_start + (size - 1) * stride) // per_node + 1
    return Group(size, min(nodes, size, cluster.nodes))


def collective_s(kind: str, nbytes: float, *, group: Group, cluster: Cluster) -> float:
    """Seconds of one collective; a group of one rank costs nothing. Raises HardwareError for an unknown kind."""
    if kind not in KINDS:
        raise HardwareError(f"collective {kind!r} is unknown; known are {', '.join(KINDS)}")
    if group.size == 1:
        return 0.0
    if kind == "all_to_all":
        return _all_to_all_s(nbytes, group=group, cluster=cluster)
    inside = _ring_s(kind, nbytes, ranks=group.per_node, link=cluster.intra)
    if group.nodes == 1:
        return inside
    share = nbytes if kind == "broadcast" else nbytes / group.per_node
    return inside + _between_nodes_s(kind, share, nodes=group.nodes, link=cluster.inter)


def p2p_s(nbytes: float, *, same_node: bool, cluster: Cluster) -> float:
    """Seconds to send `nbytes` to one other rank."""
    link = cluster.intra if same_node else cluster.inter
    return link.start_s + link.latency_s + nbytes / link.bytes_per_s


def host_s(nbytes: float, *, cluster: Cluster) -> float:
    """Seconds to copy `nbytes` between a device and the memory of its host, one way."""
    return cluster.host.start_s + cluster.host.latency_s + nbytes / cluster.host.bytes_per_s


def _ring_s(kind: str, nbytes: float, *, ranks: int, link: Link) -> float:
    if ranks == 1:
        return 0.0
    hops = ranks - 1
    sent = nbytes if kind == "broadcast" else nbytes * hops / ranks
    passes = 2 if kind == "all_reduce" else 1
    return link.start_s + passes * (hops * link.latency_s + sent / link.bytes_per_s)


def _between_nodes_s(kind: str, nbytes: float, *, nodes: int, link: Link) -> float:
    ring = _ring_s(kind, nbytes, ranks=nodes, link=link)
    if kind != "all_reduce":
        return ring
    tree = link.start_s + 2 * (ceil(log2(nodes)) * link.latency_s + nbytes / link.bytes_per_s)
    return min(ring, tree)


def _all_to_all_s(nbytes: float, *, group: Group, cluster: Cluster) -> float:
    if cluster.backend == "gloo":
        return collective_s("all_gather", nbytes * group.size, group=group, cluster=cluster)
    inside, outside = group.per_node - 1, group.size - group.per_node
    seconds = 0.0
    if inside:
        link = cluster.intra
        seconds += link.start_s + inside * link.latency_s + nbytes * inside / group.size / link.bytes_per_s
    if outside:
        link = cluster.inter
        seconds += link.start_s + outside * link.latency_s + nbytes * outside / group.size / link.bytes_per_s
    return seconds
