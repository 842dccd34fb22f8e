"""A token is sent only to its own gateway, and read again when the gateway has a new one."""

from __future__ import annotations

import http.server
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from platform_examples import gateway
from shoal import Session
from shoal.cli import doctor
from shoal.client.backends import (
    Backends,
    gateway_access,
    open_engine,
    platform_name,
    remote_platform,
    token_file,
)
from shoal.engines.process import ProcessEngine
from shoal.errors import EnvironmentMismatch, GatewayUnavailable, SettingsError, TokenRefused
from shoal.platform import endpoints
from shoal.platform.environment import Expected, client_environment
from shoal.platform.http import HttpPlatform
from shoal.platform.server import GatewayServer
from shoal.platform.tokens import write_token
from shoal.settings import Settings
from store_servers import tcp_server, url_of

pytestmark = pytest.mark.real


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime folder without other tokens."""
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))


@pytest.fixture
def heard() -> list[str | None]:
    """The tokens that the listener received."""
    return []


@pytest.fixture
def listener(heard: list[str | None]) -> Iterator[tuple[str, int]]:
    """The URL of a server that records the tokens it receives."""

    class ListeningHandler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.headers.get("Authorization"))
            self.send_error(401)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), ListeningHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", server.server_port
        server.shutdown()
        thread.join()


def test_a_token_is_sent_only_to_its_own_url(
    listener: tuple[str, int], heard: list[str | None]
) -> None:
    url, port = listener
    write_token(token_file(port), "secret", f"http://127.0.0.2:{port}")
    write_token(token_file(1), "secret", "http://127.0.0.1:1")
    with pytest.raises(SettingsError, match=rf"belongs to http://127.0.0.2:{port}.* set token"):
        Session(platform=url)
    assert heard == []


def test_a_file_in_the_working_folder_cannot_redirect_a_token(
    listener: tuple[str, int],
    heard: list[str | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The user owns the file, but it may have come with somebody else's code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_TOKEN", "secret")
    write_token(token_file(1), "secret", "http://127.0.0.1:1")
    Path("shoal.toml").write_text(f'platform = "{listener[0]}"\n')
    with pytest.raises(SettingsError, match=r"wants a token.*SHOAL_TOKEN beside SHOAL_PLATFORM"):
        Session()
    monkeypatch.setenv("SHOAL_PLATFORM", "http://127.0.0.1:1")
    with pytest.raises(GatewayUnavailable, match=r"http://127\.0\.0\.1:1 can't be reached"):
        Session()
    assert heard == []


def test_a_configured_token_goes_to_its_platform_and_a_rejection_is_reported(
    listener: tuple[str, int], heard: list[str | None]
) -> None:
    with pytest.raises(TokenRefused, match="The configured token is not the gateway's"):
        Session(platform=listener[0], token="secret")
    assert set(heard) == {"Bearer secret"}


def test_a_rejected_token_from_a_file_is_read_again_once(
    listener: tuple[str, int], heard: list[str | None]
) -> None:
    url, port = listener
    write_token(token_file(port), "old", url)
    access = gateway_access(url, None)
    write_token(token_file(port), "new", url)
    platform = HttpPlatform(*access)
    with pytest.raises(TokenRefused, match="another server may be using that port"):
        platform.status()
    platform.close()
    assert heard == ["Bearer old", "Bearer new"]


def test_a_renewed_token_of_another_url_is_not_used(
    listener: tuple[str, int], heard: list[str | None]
) -> None:
    url, port = listener
    write_token(token_file(port), "old", url)
    access = gateway_access(url, None)
    write_token(token_file(port), "new", f"https://127.0.0.1:{port}")
    platform = HttpPlatform(*access)
    with pytest.raises(TokenRefused):
        platform.status()
    platform.close()
    assert heard == ["Bearer old"]


def test_a_server_announces_itself_before_anybody_can_connect(tmp_path: Path) -> None:
    announced: list[str] = []

    def announce(url: str) -> None:
        with pytest.raises(GatewayUnavailable, match="can't be reached"):
            HttpPlatform(url, "token").status()
        announced.append(url)

    with gateway(tmp_path) as local:
        server = GatewayServer(local, "another", announce=announce)
        assert announced == [server.url]
        with pytest.raises(TokenRefused):
            HttpPlatform(server.url, "token").status()
        server.close()


@pytest.mark.parametrize(
    ("url", "name"),
    [
        (None, ""),
        ("http://10.0.0.1:8470/", "http://10.0.0.1:8470"),
        ("https://b:1, https://a:2", "https://a:2,https://b:1"),
        ("lambda://shoal?region=eu-west-1&memory=1024,2048", "lambda://shoal"),
        ("function+https://user:secret@host/path?capacity=3", "function+https://host/path"),
        ("slurm:///", "slurm://"),
        ("slurm:///short?minutes=5", "slurm:///short"),
        ("docker:///registry/image:tag", "docker:///registry/image:tag"),
        ("process://?idle_seconds=5", "process://"),
    ],
)
def test_history_knows_a_platform_by_its_url_without_credentials(
    url: str | None, name: str
) -> None:
    assert platform_name(url) == name


def test_jobs_of_an_engine_get_the_certificates_and_reconnect_seconds_of_the_client(
    tmp_path: Path,
) -> None:
    """A path means nothing on another machine."""
    (tmp_path / "ca.pem").write_text("CERTIFICATE")
    settings = Settings(
        store=f"rediss://store?ca_file={tmp_path}/ca.pem",
        folder=str(tmp_path / "data"),
        reconnect_seconds=7,
    )
    engine, deployment = open_engine("process://", settings)
    engine.close()
    assert "ca_file" not in deployment.store
    assert "ca_data=CERTIFICATE" in deployment.store
    assert "reconnect_seconds=7" in deployment.store


def test_workers_must_have_the_environment_that_the_engine_expects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = Expected("name", "shoal deploy process")
    monkeypatch.setattr(ProcessEngine, "expected", expected, raising=False)
    with tcp_server() as port:
        settings = Settings(
            platform="process://", store=url_of(port), folder=str(tmp_path / "data")
        )
        backends = Backends(settings)
        wanted = backends.environment()
        backends.close()
    assert wanted == client_environment(expected)


def test_the_doctor_asks_each_gateway_of_a_fleet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_FOLDER", str(tmp_path / "data"))
    with gateway(tmp_path, capacity=2) as local:
        first, second = (GatewayServer(local, "token") for _ in range(2))
        monkeypatch.setenv("SHOAL_PLATFORM", f"{first.url}, {second.url}")
        monkeypatch.setenv("SHOAL_TOKEN", "token")
        told = f"{first.url}: up to 2 sandboxes; {second.url}: up to 2 sandboxes"
        assert doctor._platform() == (True, told)
        monkeypatch.setattr(sys.modules["shoal"], "__version__", "9.9")
        monkeypatch.setattr(endpoints, "_environment", lambda: {"python": "3.9", "shoal": "9.9"})
        works, told = doctor._platform()
        assert not works
        assert told.count("Python 3.9 instead of") == 2
        first.close()
        second.close()


def test_an_engine_that_is_refused_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[bool] = []

    def check(_engine: object, *, thorough: bool = False) -> str:
        raise EnvironmentMismatch("older")

    monkeypatch.setattr(ProcessEngine, "check", check, raising=False)
    monkeypatch.setattr(ProcessEngine, "close", lambda _engine: closed.append(True))
    settings = Settings(platform="process://", store="redis://nowhere", folder=str(tmp_path))
    with pytest.raises(EnvironmentMismatch):
        remote_platform(settings)
    assert closed == [True]
