"""The engines that can be started on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from docker_here import docker, podman
from http_functions import framework, http_function, http_function_that_calls_itself
from lambda_here import lambda_functions
from ray_here import MARKS as RAY_MARKS
from ray_here import ray_cluster
from slurm_here import slurm

from observing import eventually, processes_mentioning
from standing_gateway import StandingGateway
from store_servers import tcp_server, url_of


@contextmanager
def processes(_folder: Path) -> Iterator[tuple[str, str]]:
    """Jobs are processes."""
    with tcp_server() as port:
        yield "process://?idle_seconds=2", url_of(port)
        assert eventually(lambda: not _jobs())


@contextmanager
def two_gateways(folder: Path) -> Iterator[tuple[str, str]]:
    """Two gateways as one platform."""
    with tcp_server() as port, ExitStack() as stack:
        gateways = [StandingGateway(folder), StandingGateway(folder)]
        for gateway in gateways:
            stack.callback(gateway.end)
        yield ",".join(gateway.url for gateway in gateways), url_of(port)


def _jobs() -> list[str]:
    """The jobs that these tests have started and that haven't ended."""
    started = processes_mentioning(os.environ["XDG_RUNTIME_DIR"]).values()
    return [command for command in started if "shoal.platform.job" in command]


Started = Callable[[Path], AbstractContextManager[tuple[str, str]]]

ENGINES: dict[str, Started] = {
    "process": processes,
    "two gateways": two_gateways,
    "slurm": slurm,
    "docker": docker,
    "podman": podman,
    "http function": http_function,
    "http function that calls itself": http_function_that_calls_itself,
    "functions-framework": framework,
    "lambda": lambda_functions,
    "ray": ray_cluster,
}
"""For each engine what starts it for a client with a folder, and yields the URLs of platform and
store."""

_HERE = ("process", "two gateways", "http function", "http function that calls itself")
"""What needs nothing to be installed; `make engines` runs the others."""
_MARKS = {"ray": RAY_MARKS}


def parameters(*names: str) -> list[ParameterSet]:
    """Parameters of a fixture: these engines, or all of them."""
    return [
        pytest.param(name, marks=() if name in _HERE else _MARKS.get(name, pytest.mark.engine))
        for name in ENGINES
        if name in names or not names
    ]
