"""Nodes of a Ray cluster as hosts: workers of one node share its memory, and no other's."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import closing
from pathlib import Path

import pytest
import ray_here

from shoal import Resources, Session, Task, task
from shoal.storage.resp import Connection, parse_url
from shoal.system import shared_folder
from store_servers import tcp_server, url_of

pytestmark = [
    pytest.mark.real,
    *ray_here.MARKS,
    pytest.mark.skipif(
        not shutil.which("bwrap"), reason="bubblewrap isn't installed (`make engines`)"
    ),
]

NBYTES = 8 * 2**20
WORKERS = 4
SIZE = Resources(192)


@task(resources=SIZE)
def met(store: str, name: str, count: int) -> int:
    """Wait until as many workers are here; return what tells this machine from others."""
    with closing(Connection(parse_url(store))) as connection:
        connection.call("RPUSH", name, "here")
        while int(connection.call("LLEN", name)) < count:
            connection.call("BLPOP", f"{name}-never", 0.01)
    return os.stat("/dev/shm").st_dev


@task(resources=SIZE)
def large(_seed: int) -> bytes:
    return bytes(NBYTES)


@task(resources=SIZE)
def read(data: bytes, _number: int) -> tuple[int, int, int]:
    """Its machine, the length of its input, and the copies that this machine has."""
    time.sleep(0.2)  # so that all workers get some
    found = [path for path in shared_folder().glob("copies-*/*") if path.stat().st_size > NBYTES]
    return os.stat("/dev/shm").st_dev, len(data), len(found)


def test_workers_of_one_node_share_its_memory_and_no_other_s(tmp_path: Path) -> None:
    with ray_here.cluster(ray_here.APART) as up, tcp_server() as port:
        store = url_of(port)
        url = f"ray:///?address={up.address}&idle_seconds=20"
        with Session(platform=url, store=store, folder=str(tmp_path), workers=WORKERS) as session:
            first = [Task(met.function, name=f"m{n}", resources=SIZE) for n in range(WORKERS)]
            machines = session.compute(
                [each(store, "first", WORKERS) for each in first], planner="spread"
            )
            assert len(set(machines)) == 2
            output = large(0)
            seen = session.compute([read(output, n) for n in range(16)], planner="spread")
    assert {nbytes for _, nbytes, _ in seen} == {NBYTES}
    assert {machine: copies for machine, _, copies in seen} == dict.fromkeys(machines, 1)
