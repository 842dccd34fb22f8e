"""The engine of AWS Lambda: its URL, its requests, their signatures and their retries."""

from __future__ import annotations

import json
import platform
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from shoal import __version__
from shoal.engines import aws_api, aws_lambda
from shoal.engines.aws_api import Access, Credentials, signature_headers
from shoal.engines.aws_lambda import CHECK, SECRET_VARIABLE, LambdaEngine, memory_sizes
from shoal.engines.environment import note
from shoal.engines.requirements import Requirements
from shoal.errors import (
    EnvironmentMismatch,
    GatewayBusy,
    GatewayRefused,
    GatewayUnavailable,
    PlatformError,
    SettingsError,
)
from shoal.platform.environment import ENVIRONMENT_VARIABLE, environment_name
from shoal.platform.events import KEY_VARIABLE, STORE_VARIABLE, Deployment
from shoal.types import Resources

DEPLOYMENT = Deployment(b"k" * 32, "redis://store")
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
BY = Credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "a token")
URL = "https://lambda.eu-west-1.amazonaws.com/2015-03-31/functions/shoal-1024/invocations"
HEADERS = {"content-type": "application/json", "x-amz-invocation-type": "Event"}


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def engine(url: str) -> LambdaEngine:
    return LambdaEngine(url, DEPLOYMENT, Path())


def test_a_request_is_signed_as_botocore_signs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("botocore", reason="boto3 isn't installed: pip install 'shoal[lambda]'")
    from botocore import auth, awsrequest, credentials

    monkeypatch.setattr(auth, "get_current_datetime", lambda *_: NOW.replace(tzinfo=None))
    for url in (URL, URL.replace("shoal-1024", "a%3Ab")):
        request = awsrequest.AWSRequest("POST", url, dict(HEADERS), b"{}")
        given = credentials.Credentials(BY.access_key, BY.secret_key, BY.token)
        auth.SigV4Auth(given, "lambda", "eu-west-1").add_auth(request)
        signed = signature_headers("POST", url, b"{}", "lambda", "eu-west-1", BY, NOW, HEADERS)
        assert signed["authorization"] == request.headers["Authorization"]


def test_a_worker_runs_in_the_smallest_function_that_suffices() -> None:
    made = engine("lambda://shoal?region=eu-west-1&memory=2048,512,1024")
    assert [made.function(mb) for mb in (128, 512, 513, 2048, 9999)] == [
        "shoal-512", "shoal-512", "shoal-1024", "shoal-2048", "shoal-2048"]  # fmt: skip
    assert made.facts.memory_mb == 2048
    assert made.facts.memory_steps == (512, 1024, 2048)
    assert made.facts.prices == "aws-lambda"
    assert made.facts.seconds == 900
    assert made.facts.payload_nbytes == 256 * 1024


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("lambda://?region=x", "names no function"),
        ("lambda://shoal?regoin=x", "'regoin' is no option of it"),
        ("lambda://shoal?region=x&memory=1,2", "isn't a list of sizes in MB"),
        ("lambda://shoal?region=x&seconds=long", "isn't a whole number"),
    ],
)
def test_a_url_that_is_wrong_is_explained(url: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        engine(url)


def test_without_boto3_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "boto3", None)
    with pytest.raises(SettingsError, match=r"pip install 'shoal\[lambda\]'"):
        engine("lambda://shoal")
    made = engine("lambda://shoal?region=eu-west-1")
    with pytest.raises(SettingsError, match=r"pip install 'shoal\[lambda\]'"):
        made.start(b"{}", Resources(512))


def test_without_region_or_credentials_the_error_says_what_to_set() -> None:
    pytest.importorskip("boto3", reason="boto3 isn't installed: pip install 'shoal[lambda]'")
    with pytest.raises(SettingsError, match="The AWS region is unknown"):
        engine("lambda://shoal")
    with pytest.raises(SettingsError, match="No AWS credentials were found"):
        engine("lambda://shoal?region=eu-west-1").start(b"{}", Resources(512))


def test_memory_sizes_are_sorted_and_have_a_default() -> None:
    assert memory_sizes("2048, 512,512", "here") == [512, 2048]
    assert memory_sizes(None, "here") == list(aws_lambda.DEFAULT_MEMORY)


class Api(ThreadingHTTPServer):
    """Answers with what it is told to."""

    daemon_threads = True
    answers: list[int]
    bodies: list[bytes]
    requests: list[tuple[str, dict[str, str], bytes]]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        server: Any = self.server
        body = self.rfile.read(int(self.headers["content-length"]))
        server.requests.append((self.path, dict(self.headers), body))
        said = server.bodies.pop(0) if server.bodies else b""
        self.send_response(server.answers.pop(0) if server.answers else 202)
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture
def api() -> Iterator[Api]:
    server = Api(("127.0.0.1", 0), Handler)
    server.answers, server.bodies, server.requests = [], [], []
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def reaching(api: Api) -> LambdaEngine:
    return engine(f"lambda://shoal?endpoint=http://127.0.0.1:{api.server_port}")


def test_an_event_is_an_asynchronous_invocation(api: Api) -> None:
    with closing(reaching(api)) as made:
        assert made.start(b"event", Resources(1500)) == "shoal-2048"
    ((path, headers, body),) = api.requests
    assert path == "/2015-03-31/functions/shoal-2048/invocations"
    assert headers["x-amz-invocation-type"] == "Event"
    assert body == b"event"


def test_a_throttled_request_is_repeated(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aws_api.time, "sleep", lambda _: None)
    api.answers += [429, 500, 429]
    with closing(reaching(api)) as made:
        made.start(b"event", Resources(512))
    assert len(api.requests) == 4


def test_a_request_is_not_repeated_forever(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aws_api, "_RETRY_SECONDS", 0.0)
    api.answers += [429]
    with closing(reaching(api)) as made, pytest.raises(GatewayBusy, match="429"):
        made.start(b"event", Resources(512))


@pytest.mark.parametrize(
    ("status", "message"),
    [(404, "no function 'shoal-1024'"), (403, "lambda:InvokeFunction"), (413, "too large")],
)
def test_a_refusal_says_what_to_do(api: Api, status: int, message: str) -> None:
    api.answers += [status]
    with closing(reaching(api)) as made, pytest.raises(GatewayRefused, match=message):
        made.start(b"event", Resources(512))
    assert len(api.requests) == 1


FACTS = {
    "shoal": __version__,
    "python": platform.python_version(),
    "environment": "",
    "deployment": DEPLOYMENT.id,
    "trouble": "",
}


def test_a_function_is_called_when_a_session_opens_and_all_of_them_by_the_doctor(api: Api) -> None:
    api.bodies += 4 * [json.dumps(FACTS).encode()]
    with closing(reaching(api)) as made:
        assert "answer; they weren't deployed from here" in made.check()
        assert len(api.requests) == 1
        assert "3 functions" in made.check(thorough=True)
    assert len({path for path, _, _ in api.requests}) == 3
    assert {headers["x-amz-invocation-type"] for _, headers, _ in api.requests} == {
        "RequestResponse"
    }


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({"shoal": "0.0.1"}, r"Shoal 0\.0\.1 instead of .*`shoal deploy lambda --name shoal`"),
        ({"python": "3.9.2"}, r"Python 3\.9 instead of"),
        ({"deployment": "another"}, "another deployment's key"),
        ({"trouble": "No store."}, "can't work: No store"),
    ],
)
def test_a_function_that_cannot_run_the_clients_workers_is_refused(
    api: Api, found: dict[str, str], told: str
) -> None:
    api.bodies.append(json.dumps(FACTS | found).encode())
    with closing(reaching(api)) as made, pytest.raises(PlatformError, match=told):
        made.check()


def test_a_function_that_fails_is_quoted(api: Api) -> None:
    api.bodies.append(b'{"errorMessage": "No module named shoal"}')
    with closing(reaching(api)) as made, pytest.raises(PlatformError, match="No module named"):
        made.check()


def test_a_function_whose_environment_has_changed_since_is_refused_with_the_command(
    api: Api, tmp_path: Path
) -> None:
    packages = Requirements(("msgspec",))
    note(tmp_path, "lambda", "shoal", packages, None, "shoal deploy lambda --memory 512")
    url = f"lambda://shoal?endpoint=http://127.0.0.1:{api.server_port}"
    same = FACTS | {"environment": environment_name(packages.lines)}
    api.bodies += [json.dumps(each).encode() for each in (same, same | {"environment": "older"})]
    with closing(LambdaEngine(url, DEPLOYMENT, tmp_path)) as made:
        assert made.check() == f"3 functions shoal-… in {made._access.region} answer"
        assert made.expected.renewal == "shoal deploy lambda --memory 512"
        with pytest.raises(EnvironmentMismatch, match=r"environment older .*lambda --memory 512`"):
            made.check()


def test_a_busy_account_does_not_keep_a_session_from_opening(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aws_api, "_RETRY_SECONDS", 0.0)
    api.answers += [429, 429]
    with closing(reaching(api)) as made:
        assert made.check() == "busy"
        with pytest.raises(GatewayBusy):
            made.check(thorough=True)


def test_a_function_tells_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (STORE_VARIABLE, KEY_VARIABLE, SECRET_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "name")
    found = aws_lambda.handler(CHECK, None)
    assert KEY_VARIABLE in found["trouble"]
    assert found["environment"] == "name"
    monkeypatch.setenv(STORE_VARIABLE, "redis://127.0.0.1:9")
    monkeypatch.setenv(KEY_VARIABLE, DEPLOYMENT.key.hex())
    found = aws_lambda.handler(CHECK, None)
    assert "127.0.0.1:9" in found["trouble"]
    assert found["deployment"] == DEPLOYMENT.id


def test_an_endpoint_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aws_api, "_RETRY_SECONDS", 0.0)
    refused = pytest.raises(GatewayUnavailable, match=r"no answer from http://127\.0\.0\.1:9/")
    with closing(Access(None, "http://127.0.0.1:9")) as access, refused:
        access.post("lambda", "/", b"", {})
