"""Ranks and coordinates of a mesh."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given

from planner.ir.mesh import AXES, DATA_AXES, SHARD_AXES, Mesh
from tests.strategies import meshes


@given(meshes)
def test_coordinates_name_the_rank(mesh: Mesh) -> None:
    """rank = sum of coordinate x stride, and every coordinate is below its degree."""
    for rank in range(min(mesh.world_size, 64)):
        coordinates = {axis: mesh.coordinate(rank, axis) for axis in AXES}
        assert rank == sum(coordinates[axis] * mesh.stride(axis) for axis in AXES)
        assert all(coordinates[axis] < mesh.degree(axis) for axis in AXES)


@given(meshes)
def test_world_size_is_the_product(mesh: Mesh) -> None:
    """World size is the product of degrees; samples are divided along all data axes but cp."""
    assert mesh.world_size == prod(mesh.degree(axis) for axis in AXES)
    assert mesh.dp * mesh.cp == mesh.data == mesh.dp_replicate * mesh.shards


@given(meshes)
def test_joined_axes_are_one_axis(mesh: Mesh) -> None:
    """The ranks of a joined group are as many as its degree and, all shards being neighbours, a stride apart."""
    name = mesh.joined(SHARD_AXES)
    group = mesh.group(0, name)
    assert mesh.degree(name) == mesh.shards == len(group)
    assert group == tuple(index * mesh.stride(name) for index in range(mesh.shards))


def test_tp_neighbours_are_adjacent() -> None:
    """tp is innermost, pp outermost."""
    mesh = Mesh(pp=2, dp_shard=2, tp=4)
    assert (1, 4, 8) == (mesh.stride("tp"), mesh.stride("dp_shard"), mesh.stride("pp"))
    assert (1, 0, 3) == tuple(mesh.coordinate(11, axis) for axis in ("pp", "dp_shard", "tp"))


def test_joined_names() -> None:
    """Axes of one rank are left out of a name; where all are, the first names the group."""
    mesh = Mesh(dp_replicate=2, cp=2, tp=2)
    assert ("dp_replicate*cp", "cp", "dp_shard") == (mesh.joined(DATA_AXES), mesh.joined(SHARD_AXES), mesh.joined(("dp_shard", "ep")))
    assert (1, 3, 5, 7) == mesh.group(3, "dp_replicate*cp")


def test_text() -> None:
    """Axes of degree 1 are not shown."""
    assert "pp=2 tp=4" == str(Mesh(pp=2, tp=4))
    assert "single device" == str(Mesh())


def test_degrees_are_positive() -> None:
    """A degree below 1 is a mistake of ours."""
    with pytest.raises(AssertionError):
        Mesh(tp=0)
