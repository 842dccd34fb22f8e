"""Requests to AWS without boto3: signed, over connections that are used again, with retries.

boto3 takes a second to import and megabytes of a function's package. Workers need one request of
one service, so this module signs it (Signature Version 4). boto3 is needed where credentials come
from a profile, from SSO or from a machine's role; inside Lambda they are in the environment.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

from shoal.errors import GatewayBusy, GatewayRefused, GatewayUnavailable, SettingsError

_RETRY_SECONDS = 60.0
"""Seconds for which a request is repeated that is throttled or can't be sent."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0
_TIMEOUT = 30.0
_THROTTLED = 429


@dataclass(frozen=True, slots=True)
class Credentials:
    """What signs requests."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str = field(default="", repr=False)

    @classmethod
    def of_environment(cls, variables: Mapping[str, str]) -> Credentials | None:
        """The credentials in the environment, if there are any."""
        if "AWS_ACCESS_KEY_ID" not in variables or "AWS_SECRET_ACCESS_KEY" not in variables:
            return None
        token = variables.get("AWS_SESSION_TOKEN", "")
        return cls(variables["AWS_ACCESS_KEY_ID"], variables["AWS_SECRET_ACCESS_KEY"], token)


def signature_headers(
    method: str, url: str, body: bytes, service: str, region: str, by: Credentials, now: datetime,
    headers: Mapping[str, str] | None = None,
) -> dict[str, str]:  # fmt: skip
    """The headers of a request, with its signature.

    Args:
        method: The HTTP method.
        url: Where it goes; its path is encoded, and it has no query.
        body: What it carries.
        service: The service, as signatures name it.
        region: The region of the service.
        by: Who sends it.
        now: The time in UTC.
        headers: Further headers to send and to sign.
    """
    parts = urlsplit(url)
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    signed = {name.lower(): value for name, value in (headers or {}).items()}
    signed |= {"host": parts.netloc, "x-amz-date": stamp}
    if by.token:
        signed["x-amz-security-token"] = by.token
    names = ";".join(sorted(signed))
    lines = "".join(f"{name}:{signed[name].strip()}\n" for name in sorted(signed))
    path = quote(parts.path, safe="/-_.~")  # encoded a second time, as every service but S3 wants
    canonical = f"{method}\n{path}\n\n{lines}\n{names}\n{hashlib.sha256(body).hexdigest()}"
    scope = f"{stamp[:8]}/{region}/{service}/aws4_request"
    hashed = hashlib.sha256(canonical.encode()).hexdigest()
    key = f"AWS4{by.secret_key}".encode()
    for part in (*scope.split("/"), f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashed}"):
        key = hmac.digest(key, part.encode(), "sha256")
    signed["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={by.access_key}/{scope}, SignedHeaders={names}, "
        f"Signature={key.hex()}"
    )
    return signed


class Access:
    """The region, the endpoint and the credentials of one client; safe to use from threads."""

    def __init__(self, region: str | None, endpoint: str | None) -> None:
        """Find what isn't given in the environment or in the profile that boto3 finds.

        Args:
            region: The region; None: that of the environment.
            endpoint: The URL of an emulator; None: AWS.
        """
        self._session: Any = None
        self._found: Any = None
        variables = os.environ
        known = region or variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION")
        if known is None and endpoint is None:
            known = self._boto3().region_name
        if known is None and endpoint is None:
            raise SettingsError(
                "The AWS region is unknown. Name it in the URL, as in "
                "lambda://shoal?region=eu-west-1, or set AWS_REGION."
            )
        self.region = known or "us-east-1"
        self.endpoint = endpoint
        self._lock = threading.Lock()
        self._idle: dict[str, list[http.client.HTTPConnection]] = {}
        """Idle connections, by host."""

    def _boto3(self) -> Any:
        if self._session is None:
            self._session = import_boto3().session.Session()
        return self._session

    def credentials(self) -> Credentials | None:
        """Who sends requests; None: nobody that an emulator would have to know."""
        found = Credentials.of_environment(os.environ)
        if found is not None:
            return found
        if self._found is None and self.endpoint is None:
            self._found = self._boto3().get_credentials()
            if self._found is None:
                raise SettingsError(
                    "No AWS credentials were found. Run `aws configure` or `aws sso login`, or "
                    "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
                )
        if self._found is None:
            return None
        frozen = self._found.get_frozen_credentials()
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token or "")

    def url(self, service: str) -> str:
        """Where a service is."""
        suffix = ".cn" if self.region.startswith("cn-") else ""
        return self.endpoint or f"https://{service}.{self.region}.amazonaws.com{suffix}"

    def post(
        self, service: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        """Send a request, again while it is throttled; return the status and the answer.

        Raises:
            GatewayBusy: It was throttled all the time.
            GatewayUnavailable: There was no answer all the time.
        """
        url = self.url(service) + path
        deadline, pause = time.monotonic() + _RETRY_SECONDS, _FIRST_PAUSE
        while True:
            trouble: Exception
            try:
                status, answer = self._attempt(service, url, body, headers)
                if status != _THROTTLED and status < 500:
                    return status, answer
                text = answer.decode(errors="replace")
                trouble = GatewayBusy(f"{url} refuses requests ({status}): {text}.")
            except (OSError, http.client.HTTPException) as error:
                trouble = GatewayUnavailable(f"There is no answer from {url}: {error!r}.")
            if time.monotonic() + pause > deadline:
                raise trouble
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _attempt(
        self, service: str, url: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        by, now = self.credentials(), datetime.now(UTC)
        sent = dict(headers)
        if by is not None:
            sent = signature_headers("POST", url, body, service, self.region, by, now, headers)
        parts = urlsplit(url)
        with self._lock:
            idle = self._idle.get(parts.netloc)
            connection = idle.pop() if idle else None
        if connection is not None:
            # If the server has closed it, or this process was frozen, another one is made.
            with contextlib.suppress(OSError, http.client.HTTPException):
                return self._exchange(connection, parts, body, sent)
        make: Callable[..., http.client.HTTPConnection] = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        return self._exchange(make(parts.netloc, timeout=_TIMEOUT), parts, body, sent)

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        where: SplitResult,
        body: bytes,
        headers: Mapping[str, str],
    ) -> tuple[int, bytes]:
        """Send a request over a connection, which is kept for the next one if that works."""
        try:
            connection.request("POST", where.path, body, dict(headers))
            answer = connection.getresponse()
            status, text = answer.status, answer.read()
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.setdefault(where.netloc, []).append(connection)
        return status, text

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            found, self._idle = self._idle, {}
        for connection in [each for idle in found.values() for each in idle]:
            connection.close()


def import_boto3() -> Any:
    """The package boto3, or an error that names the extra which brings it."""
    try:
        import boto3
        import boto3.session
    except ImportError as error:
        raise SettingsError(
            "AWS Lambda needs the package boto3: pip install 'shoal[lambda]'."
        ) from error
    return boto3


def refusal(status: int, answer: bytes, function: str, region: str) -> GatewayRefused:
    """What a refused invocation means, in words."""
    text = answer.decode(errors="replace")[:500]
    if status == 404:
        return GatewayRefused(
            f"There is no function {function!r} in {region}: deploy it with `shoal deploy lambda`, "
            "or correct the name, the region or the memory sizes in the platform's URL."
        )
    if status == 403:
        return GatewayRefused(
            f"AWS doesn't let you invoke {function!r} in {region}: {text}. Check the credentials, "
            f"and that they permit lambda:InvokeFunction on {function.rpartition('-')[0]}-*."
        )
    if status == 413:
        return GatewayRefused(f"The event for {function!r} is too large for Lambda: {text}.")
    return GatewayRefused(f"Lambda refused to invoke {function!r} ({status}): {text}.")
