"""An Invoke API that others wrote: serverless-offline. `make engines` installs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from observing import eventually
from shoal import Output, Session, task
from shoal.platform.events import KEY_VARIABLE, STORE_VARIABLE, Deployment
from shoal.platform.job import PLATFORM_VARIABLE
from store_servers import free_port, reachable, tcp_server, url_of

INSTALLED = Path(__file__).parent.parent.parent / "out" / "serverless"
OSLS = INSTALLED / "node_modules" / ".bin" / "osls"

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        not OSLS.exists(), reason="serverless-offline isn't installed: run `make engines`"
    ),
]


@task
def square(number: int) -> int:
    return number * number


@task
def add(a: int, b: int) -> int:
    return a + b


def tree(leaves: int) -> Output[int]:
    level: list[Output[int]] = [square(number) for number in range(leaves)]
    while len(level) > 1:
        level = [add(a, b) for a, b in zip(level[::2], level[1::2], strict=True)]
    return level[0]


@pytest.fixture
def store() -> Iterator[str]:
    with tcp_server() as port:
        yield url_of(port)


@pytest.fixture
def platform(store: str, tmp_path: Path) -> Iterator[str]:
    lambda_port, http_port = free_port(), free_port()
    url = f"lambda://shoal?memory=1024,2048&endpoint=http://127.0.0.1:{lambda_port}"
    key = Deployment.of_user(tmp_path, store).key.hex()
    variables = {STORE_VARIABLE: store, KEY_VARIABLE: key, PLATFORM_VARIABLE: url}
    ports = {"lambdaPort": lambda_port, "httpPort": http_port, "host": "127.0.0.1"}
    service = {
        "service": "shoal-test",
        "frameworkVersion": "*",
        "provider": {
            "name": "aws",
            "runtime": f"python3.{sys.version_info[1]}",
            "region": "eu-west-1",
            "timeout": 900,
            "environment": variables | {"AWS_REGION": "eu-west-1"},
        },
        "plugins": ["serverless-offline"],
        "custom": {"serverless-offline": ports},
        "functions": {
            f"f{mb}": {"name": f"shoal-{mb}", "handler": "handler.handler", "memorySize": mb}
            for mb in (1024, 2048)
        },
    }
    folder = tmp_path / "service"
    folder.mkdir()
    (folder / "serverless.yml").write_text(json.dumps(service))
    (folder / "handler.py").write_text("from shoal.engines.aws_lambda import handler\n")
    (folder / "node_modules").symlink_to(INSTALLED / "node_modules")
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(
            [OSLS, "offline"],
            cwd=folder,
            env=os.environ | {"PATH": programs, "AWS_ACCESS_KEY_ID": "a",
                              "AWS_SECRET_ACCESS_KEY": "b", "SLS_TELEMETRY_DISABLED": "1"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )  # fmt: skip
    try:
        up = eventually(lambda: b"listening" in (tmp_path / "log").read_bytes(), 90)
        assert up, (tmp_path / "log").read_text()
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        if not eventually(lambda: process.poll() is not None):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_workflows_run_on_another_implementation_of_lambda(
    platform: str, store: str, tmp_path: Path
) -> None:
    assert reachable(store)
    options = {"platform": platform, "store": store, "folder": str(tmp_path)}
    with Session(**options, workers=3, lease=60) as session:
        assert session.compute(square(3)) == [9]
        for _ in range(2):
            assert session.compute(tree(512)) == [sum(n * n for n in range(512))]
