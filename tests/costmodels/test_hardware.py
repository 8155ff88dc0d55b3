"""Machines: presets, files, arrangements, digests."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from costmodels.errors import HardwareError
from costmodels.hardware import Cluster, load_cluster, preset, preset_names

NAMES = ("a100-40g", "a100-80g", "b200", "cpu-gloo", "gb200", "h100", "h200", "v100")


def test_presets() -> None:
    assert NAMES == preset_names()


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_is_one_whole_node(name: str) -> None:
    """The name is its own, it has one node, its rates are positive and it is not calibrated."""
    cluster = preset(name)
    assert (name, 1, False) == (cluster.name, cluster.nodes, cluster.calibrated)
    assert min(cluster.intra.bytes_per_s, cluster.inter.bytes_per_s, cluster.host.bytes_per_s) > 0


@pytest.mark.parametrize("name", NAMES)
def test_every_number_of_a_preset_has_its_source(name: str) -> None:
    """Every number in the file but the counts of devices comes as a value with a source."""
    bare = _bare_numbers(json.loads((files("costmodels") / "profiles" / f"{name}.json").read_text(encoding="utf-8")))
    assert {"devices_per_node"} == bare
    assert all(source for _, source in preset(name).sources)


def _bare_numbers(content: dict[str, Any], path: str = "") -> set[str]:
    found = set()
    for key, value in content.items():
        if isinstance(value, dict) and value.keys() != {"value", "source"}:
            found |= _bare_numbers(value, f"{path}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found.add(path + key)
    return found


def test_units_are_converted_once() -> None:
    """GB/s, TFLOP/s, us and GiB become SI."""
    a100 = preset("a100-80g")
    assert 80 * 2**30 == a100.device.memory_bytes
    assert 312e12 == a100.device.peak("bfloat16")
    assert 2039e9 == a100.device.memory_bytes_per_s
    assert 26e-6 == pytest.approx(a100.intra.start_s)


def test_a_dtype_without_a_rate_runs_as_float32() -> None:
    device = preset("v100").device
    assert device.peak("float32") == device.peak("int64")


def test_more_nodes() -> None:
    cluster = preset("h100").with_devices(64)
    assert (64, 8, 8) == (cluster.devices, cluster.devices_per_node, cluster.nodes)


def test_part_of_a_node() -> None:
    """Two devices of a node of eight are a node of two."""
    cluster = preset("h100").with_devices(2)
    assert (2, 2, 1) == (cluster.devices, cluster.devices_per_node, cluster.nodes)


def test_other_nodes() -> None:
    assert 4 == preset("h100").with_devices(16, devices_per_node=4).nodes


@pytest.mark.parametrize(
    ("devices", "per_node", "message"),
    [
        (12, None, "12 devices do not fill nodes of 8; use 8 or 16 devices, or other devices-per-node"),
        (0, None, "0 devices in nodes of 8: both must be at least 1"),
        (4, 0, "4 devices in nodes of 0: both must be at least 1"),
        (4, 8, "4 devices are fewer than the 8 of one node; give devices-per-node=4"),
    ],
)
def test_impossible_arrangements_are_refused(devices: int, per_node: int | None, message: str) -> None:
    with pytest.raises(HardwareError) as error:
        preset("h100").with_devices(devices, per_node)
    assert message == str(error.value)


def test_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(HardwareError, match=r"cluster 'h101' is not a preset \(a100-40g, .*\); to describe your own, give the path"):
        preset("h101")


def test_unknown_backend_is_refused() -> None:
    with pytest.raises(HardwareError, match="cluster h100: backend 'mpi' is unknown; use one of nccl, gloo"):
        replace(preset("h100"), backend="mpi")


def test_digest_covers_numbers_but_not_sources() -> None:
    """Another rate is another machine; another remark is not."""
    h100 = preset("h100")
    assert h100.digest() == replace(h100, sources=()).digest()
    others = [preset(name).digest() for name in NAMES if name != "h100"]
    others.append(replace(h100, intra=replace(h100.intra, latency_s=1e-6)).digest())
    others.append(h100.with_devices(16).digest())
    assert h100.digest() not in others
    assert h100.digest().startswith("sha256:")


def _file(tmp_path: Path, change: dict[str, Any]) -> Path:
    """The preset v100 with some keys (a dot leads inside) replaced, or removed where the value is None."""
    content = json.loads((files("costmodels") / "profiles" / "v100.json").read_text(encoding="utf-8"))
    for path, value in change.items():
        *outer, last = path.split(".")
        place = content
        for key in outer:
            place = place[key]
        if value is None:
            del place[last]
        else:
            place[last] = value
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    return file


def test_own_cluster_with_bare_numbers(tmp_path: Path) -> None:
    """Sources are optional in a file of one's own, and the count of devices may exceed a node."""
    path = _file(tmp_path, {"name": "mine", "intra.gb_per_s": 60, "devices": 32})
    assert _describe(load_cluster(path)) == ("mine", 60e9, 4)


def _describe(cluster: Cluster) -> tuple[str, float, int]:
    return cluster.name, cluster.intra.bytes_per_s, cluster.nodes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"intra.latency_us": None}, "intra.latency_us is missing"),
        ({"intra.latency_ms": 1}, "intra.latency_ms is not known here; known are gb_per_s, latency_us, start_us"),
        ({"device.memory_gib": "80"}, 'device.memory_gib must be a number, found "80"'),
        ({"device.memory_gib": -1}, "device.memory_gib must be at least 1e-09 and at most 1e+09, found -1"),
        ({"device.matmul_fraction": 1.5}, "device.matmul_fraction must be at least 1e-09 and at most 1, found 1.5"),
        ({"device.launch_us": -1}, "device.launch_us must be at least 0 and at most 1e+09, found -1"),
        ({"device.peak_tflop_per_s.float32": None}, "device.peak_tflop_per_s.float32 is missing"),
        ({"device.memory_gib": {"value": 1}}, 'device.memory_gib must be a number or {"value": number, "source": text}'),
        ({"device": 3}, "device must be an object, found 3"),
        ({"name": ""}, 'name must be a text, found ""'),
        ({"calibrated": "no"}, 'calibrated must be true or false, found "no"'),
        ({"devices_per_node": 2.5}, "devices_per_node must be a whole number from 1 to 1e+09, found 2.5"),
        ({"devices_per_node": 10**30}, "devices_per_node must be a whole number from 1 to 1e+09, found 1000000000000000000000000000000"),
        ({"intra.gb_per_s": 5e-324}, "intra.gb_per_s must be at least 1e-09 and at most 1e+09, found 5e-324"),
        ({"intra.gb_per_s": float("nan")}, "intra.gb_per_s must be at least 1e-09 and at most 1e+09, found NaN"),
        ({"device.memory_gib": 10**400}, f"device.memory_gib must be at least 1e-09 and at most 1e+09, found 1{36 * '0'}..."),
        ({"format": "autopar-cluster/9"}, "format must be 'autopar-cluster/1', found 'autopar-cluster/9'"),
    ],
)
def test_mistakes_in_a_file_name_the_key(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = _file(tmp_path, change)
    with pytest.raises(HardwareError) as error:
        load_cluster(path)
    assert f"{path}: {message}" == str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "must hold one object, found a list"),
        ('{\n"name" 3}', "line 2 is not JSON: Expecting ':' delimiter"),
        ('{"name": "a", "name": "b"}', "is not usable JSON: key 'name' is given twice in one object; keep one of them"),
        ("1" * 2**21, "is longer than 1,048,576 characters; a cluster description has about 3,000"),
    ],
    ids=["list", "syntax", "twice", "long"],
)
def test_a_file_that_is_no_description(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(HardwareError) as error:
        load_cluster(path)
    assert f"{path}: {message}" == str(error.value)


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000, '{"name": "\\ud800"}'], ids=["deep", "digits", "surrogate"])
def test_a_file_that_json_cannot_hold(tmp_path: Path, text: str) -> None:
    """Nesting, digits and characters beyond what can be worked with are errors of the file."""
    path = tmp_path / "mine.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(HardwareError, match="is not usable JSON"):
        load_cluster(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(HardwareError, match=r"none\.json: cannot be read: .*No such file"):
        load_cluster(tmp_path / "none.json")
