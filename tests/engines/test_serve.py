"""Shoal's own server of a function: slots, misuse, and its sudden death."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from http_functions import serve, serving

from dropping_proxy import DroppingProxy
from observing import eventually
from shoal import Session, task
from shoal.cli.main import main
from shoal.engines.serve import FnServer, FunctionServer, read_secrets
from shoal.errors import GatewayRefused
from shoal.platform import job
from shoal.platform.events import KEY_VARIABLE, STORE_VARIABLE
from store_servers import tcp_server, url_of

pytestmark = pytest.mark.real


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FunctionServer]:
    monkeypatch.setenv(STORE_VARIABLE, "redis://store")
    monkeypatch.setenv(KEY_VARIABLE, "00" * 32)
    made = FunctionServer("127.0.0.1", 0, 1)
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def post(server: FunctionServer, body: bytes, **headers: str) -> tuple[int, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
    connection.request("POST", "/any/path", body, headers)
    response = connection.getresponse()
    content = json.load(response)
    assert response.status == 200 or "error" in content
    connection.close()
    return response.status, dict(response.headers)


def test_an_event_beyond_the_slots_is_refused_for_now(
    server: FunctionServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, free = threading.Event(), threading.Event()

    def run(event: bytes) -> dict[str, str]:
        begun.set()
        free.wait(30)
        return {}

    monkeypatch.setattr(job, "run", run)
    first = threading.Thread(target=post, args=(server, b"{}"))
    first.start()
    assert begun.wait(30)
    status, headers = post(server, b"{}")
    assert (status, headers["Retry-After"]) == (429, "1")
    assert post(server, b"")[0] == 200  # a question is no event
    free.set()
    first.join()
    assert eventually(lambda: post(server, b"{}")[0] == 200)


def test_a_body_of_unknown_or_excessive_size_is_refused(server: FunctionServer) -> None:
    assert post(server, b"", **{"Content-Length": "many"})[0] == 413
    assert post(server, b"", **{"Content-Length": str(2**40)})[0] == 413
    assert post(server, b"", **{"Transfer-Encoding": "chunked"})[0] == 411


def test_a_server_without_secrets_does_not_start() -> None:
    variables = {k: v for k, v in os.environ.items() if k not in (STORE_VARIABLE, KEY_VARIABLE)}
    command = [sys.executable, "-m", "shoal.engines.serve", "--port", "0"]
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "SHOAL_DEPLOYMENT_KEY" in ended.stderr


def test_secrets_may_be_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STORE_VARIABLE, "redis://set")
    monkeypatch.setenv(KEY_VARIABLE, "")
    monkeypatch.delenv(KEY_VARIABLE)
    (tmp_path / "shoal-deployment-key").write_text("00ff\n")
    (tmp_path / "shoal-store").write_text("redis://file")
    (tmp_path / "other").write_text("nothing of ours")
    read_secrets(tmp_path)
    assert (os.environ[KEY_VARIABLE], os.environ[STORE_VARIABLE]) == ("00ff", "redis://set")
    assert "OTHER" not in os.environ


def test_fn_calls_it_on_a_socket_and_gets_the_status_in_a_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STORE_VARIABLE, "redis://store")
    monkeypatch.setenv(KEY_VARIABLE, "00" * 32)
    path = tmp_path / "lsnr.sock"
    server = FnServer(f"unix:{path}", 1)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    with socket.socket(socket.AF_UNIX) as connected:
        connected.connect(str(path))
        connected.sendall(b"POST /call HTTP/1.1\r\nHost: fn\r\nContent-Length: 5\r\n\r\nhello")
        response = http.client.HTTPResponse(connected)
        response.begin()
        assert (response.status, response.headers["Fn-Http-Status"]) == (200, "400")
        assert "isn't an event" in json.load(response)["error"]
    server.shutdown()
    thread.join()
    server.server_close()
    assert path.stat().st_mode & 0o666 == 0o666


@task
def killing(path: str) -> str:
    """Kill the server that a file names, the first time."""
    file = Path(path)
    if file.exists():
        pid = int(file.read_text())
        file.unlink()
        os.kill(pid, signal.SIGKILL)
    return "survived"


def test_a_worker_whose_instance_dies_restarts_long_before_its_lease_expires(
    tmp_path: Path,
) -> None:
    """1. A task kills its function's server. 2. The connection drops. 3. Another server answers."""
    with tcp_server() as store_port:
        store = url_of(store_port)
        with (
            serving(serve, tmp_path, store) as (port, first),
            serving(serve, tmp_path, store) as (other_port, _),
        ):
            proxy = DroppingProxy(port)
            victim = tmp_path / "victim"
            victim.write_text(str(first.pid))
            platform = f"function+http://127.0.0.1:{proxy.port}/"
            with Session(platform=platform, store=store, folder=str(tmp_path), lease=900) as here:
                run = here.submit(killing(str(victim)))
                first.wait()
                proxy._target = ("127.0.0.1", other_port)
                assert run.result(timeout=60) == "survived"
            proxy.close()


def test_the_client_says_at_once_whether_a_function_has_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    with tcp_server() as store_port:
        store = url_of(store_port)
        with serving(serve, tmp_path, store) as (port, _):
            url = f"function+http://127.0.0.1:{port}/"
            monkeypatch.setenv("SHOAL_PLATFORM", url)
            monkeypatch.setenv("SHOAL_STORE", store)
            monkeypatch.setenv("SHOAL_FOLDER", str(tmp_path))
            main(["doctor"])
            assert (
                f"ok    platform          {url}: http://127.0.0.1:{port}/: Shoal"
                in capsys.readouterr().out
            )
            monkeypatch.setenv("SHOAL_FOLDER", str(other))
            assert main(["doctor"]) == 1
            assert "another deployment key" in capsys.readouterr().out
            with pytest.raises(GatewayRefused, match="another deployment key"):
                Session(platform=url, store=store, folder=str(other))
