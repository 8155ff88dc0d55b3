"""A store by which the ranks of a test find each other."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch.distributed as dist


def shared_store(directory: Path, *, rank: int, ranks: int) -> dist.Store:
    """A store in the first rank; the others read its port from a file. A store on a file gets slower with every group that is made."""
    port = directory / "port"
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, ranks, is_master=True, wait_for_workers=False)
        (directory / "port.part").write_text(str(store.port), encoding="utf-8")
        os.replace(directory / "port.part", port)
        return store
    while not port.exists():
        time.sleep(0.02)
    return dist.TCPStore("127.0.0.1", int(port.read_text(encoding="utf-8")), ranks, is_master=False)


def all_arrived(store: dist.Store, place: str, ranks: int) -> None:
    """Waits until all ranks have called this with the same `place`; works where a failed collective has spoiled the group."""
    store.add(place, 1)
    while store.add(place, 0) < ranks:
        time.sleep(0.02)
