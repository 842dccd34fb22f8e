"""A sandbox's output is split into lines, and logged for the worker that printed it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.platform.logs import RunLogs
from shoal.platform.sandbox_output import SandboxOutput
from shoal.types import RunId

RUN = RunId("run-1")


@pytest.fixture
def logs(tmp_path: Path) -> RunLogs:
    return RunLogs(tmp_path)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    yield reading, writing
    os.close(reading)
    os.close(writing)


def texts(logs: RunLogs) -> list[str]:
    return [line.text for line in logs.read(RUN)]


def test_a_line_is_logged_once_it_has_ended(logs: RunLogs, pipe: tuple[int, int]) -> None:
    output = SandboxOutput({"stdout": pipe[0]}, logs)
    output.assign(RUN, "w0")
    os.write(pipe[1], b"first\nsec")
    assert output.read("stdout")
    assert texts(logs) == ["first"]
    output.drain(unfinished=False)
    assert texts(logs) == ["first"]
    os.write(pipe[1], b"ond\nthird")
    output.drain()
    assert texts(logs) == ["first", "second", "third"]
    assert output.read("stdout")  # there is nothing yet


def test_a_closed_stream_is_distinguished_from_a_quiet_one(
    logs: RunLogs, pipe: tuple[int, int]
) -> None:
    reading, writing = os.pipe()
    os.close(writing)
    output = SandboxOutput({"stdout": reading}, logs)
    assert not output.read("stdout")
    output.close()


def test_output_before_the_first_worker_is_not_logged(
    logs: RunLogs, pipe: tuple[int, int], tmp_path: Path
) -> None:
    output = SandboxOutput({"stdout": pipe[0]}, logs)
    os.write(pipe[1], b"nobody\n")
    output.drain()
    output.assign(RUN, "w0")
    os.write(pipe[1], b"mine\n")
    output.drain()
    assert texts(logs) == ["mine"]
    assert len([*tmp_path.iterdir()]) == 1


def test_reading_an_endless_stream_stops_after_a_while(logs: RunLogs) -> None:
    """A process that a task left behind may print faster than the gateway reads."""
    with open("/dev/zero", "rb") as endless:
        output = SandboxOutput({"stdout": endless.fileno()}, logs)
        output.assign(RUN, "w0")
        output.drain()
    assert 1 < len(texts(logs)) < 100
