"""HTTP functions on this machine: Shoal's own server, and Google's functions-framework."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from observing import eventually
from shoal.platform.events import KEY_VARIABLE, STORE_VARIABLE, Deployment
from store_servers import free_port, tcp_server, url_of


def answers(url: str) -> bool:
    """Whether a function answers at a URL."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return "shoal" in json.load(response)
    except (OSError, ValueError):
        return False


@contextmanager
def serving(
    command: Callable[[int], list[str]], folder: Path, store: str, **more: str
) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """A function's server, which shares a store and a key with its clients, and no files.

    Yields its port and its process. `{port}` in a variable stands for the port.
    """
    key = Deployment.of_user(folder, store).key.hex()
    own = folder / "function"
    own.mkdir(exist_ok=True)
    for _ in range(5):  # others may take the port meanwhile
        port = free_port()
        variables = {STORE_VARIABLE: store, KEY_VARIABLE: key, "XDG_DATA_HOME": str(own)}
        variables |= {name: text.format(port=port) for name, text in more.items()}
        process = subprocess.Popen(command(port), env=os.environ | variables, cwd=own)
        url = f"http://127.0.0.1:{port}/"
        assert eventually(lambda: process.poll() is not None or answers(url))  # noqa: B023
        if process.poll() is None:
            break
    try:
        yield port, process
    finally:
        process.terminate()
        process.wait()


def serve(port: int, slots: int = 4) -> list[str]:
    """The command that starts Shoal's own server."""
    command = [sys.executable, "-m", "shoal.engines.serve", "--host", "127.0.0.1"]
    return [*command, "--port", str(port), "--slots", str(slots)]


@contextmanager
def http_function(folder: Path) -> Iterator[tuple[str, str]]:
    """A function that can't call itself."""
    with tcp_server() as store_port:
        store = url_of(store_port)
        with serving(serve, folder, store) as (port, _):
            yield f"function+http://127.0.0.1:{port}/?capacity=4", store


@contextmanager
def http_function_that_calls_itself(folder: Path) -> Iterator[tuple[str, str]]:
    """A function that knows its own URL; more calls are made at a time than it has slots."""
    url = "function+http://127.0.0.1:{port}/?capacity=6&nests=1"
    with tcp_server() as store_port:
        store = url_of(store_port)
        with serving(serve, folder, store, SHOAL_PLATFORM=url) as (port, _):
            yield url.format(port=port), store


@contextmanager
def framework(folder: Path) -> Iterator[tuple[str, str]]:
    """Google's functions-framework, with four processes of four threads."""
    if importlib.util.find_spec("functions_framework") is None:
        pytest.skip("functions-framework isn't installed: pip install functions-framework")
    main = folder / "main.py"
    main.write_text("from shoal.engines.entry import handle\n")

    def command(port: int) -> list[str]:
        run = "from functions_framework._cli import _cli; _cli()"
        served = [sys.executable, "-c", run, "--source", str(main), "--target", "handle"]
        return [*served, "--host", "127.0.0.1", "--port", str(port)]

    with tcp_server() as store_port:
        store = url_of(store_port)
        with serving(command, folder, store, WORKERS="4", THREADS="4") as (port, _):
            yield f"function+http://127.0.0.1:{port}/?capacity=8", store
