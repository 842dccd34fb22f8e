"""Fuzz everything that parses input from others.

The gateway's HTTP interface gets its input over real connections: requests that schemathesis
derives from the gateway's own description, damaged invocations, and arbitrary bytes. The codec, the
invocations, the records of timelines and the settings get theirs directly. An input counts as a
crash if it causes anything but a result or a Shoal error, or a status of 500 or more.

    python tests/fuzz/fuzzing.py --inputs 100000 --seed 1
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from shoal.cli.settings import parse_assignments
from shoal.errors import ShoalError
from shoal.execution.timeline import decode_records, encode_record
from shoal.platform.http import HttpPlatform
from shoal.platform.invocation import (
    RunContext,
    Start,
    StartRequest,
    UserCode,
    WarmUpRequest,
    checked,
    from_json,
    to_json,
)
from shoal.settings import NAMES, resolve
from shoal.storage.codec import decode, encode
from shoal.storage.resp import parse_url
from shoal.types import RunId, TaskId, WorkerId

SHARES = {"codec": 30, "invocation": 20, "records": 15, "settings": 15, "jobs": 8, "bytes": 4,
          "interface": 8}  # fmt: skip
"""The inputs of each target, of 100 in total."""
_BODIES = 50
"""One in so many inputs of the interface has a body, because schemathesis generates them slowly."""
_TOKEN = "fuzz"
_KEY = b"k" * 32
_SECONDS = 30.0

_CONTEXT = RunContext(
    run=RunId("run-1"),
    key=b"key",
    store="unix:///nowhere",
    code=UserCode(session="s1", path=("/a",)),
)
_START = Start(worker=WorkerId("w0"), epoch=1, memory_mb=64, cpus=1.0)
CONTEXT: dict[str, Any] = json.loads(to_json(_CONTEXT))
START: dict[str, Any] = json.loads(to_json(_START))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


def _damaged(whole: dict[str, Any], fields: tuple[str, ...]) -> st.SearchStrategy[Any]:
    """Return an object with some fields changed, added or removed."""
    return st.builds(
        lambda change, gone: {k: v for k, v in (whole | change).items() if k not in gone},
        st.dictionaries(st.sampled_from(fields) | st.text(max_size=8), JSON, max_size=3),
        st.sets(st.sampled_from(fields), max_size=1),
    )


_CONTEXTS = st.just(CONTEXT) | _damaged(CONTEXT, RunContext.__struct_fields__) | st.builds(
    lambda code: CONTEXT | {"code": code}, _damaged(CONTEXT["code"], UserCode.__struct_fields__)
)  # fmt: skip
_STARTS = st.just(START) | _damaged(START, Start.__struct_fields__)
DAMAGED_STARTS = st.fixed_dictionaries(
    {"context": _CONTEXTS, "starts": st.lists(_STARTS, max_size=2)}
)
DAMAGED_WARM_UP = st.fixed_dictionaries(
    {"context": _CONTEXTS, "count": st.integers(-1, 3) | JSON, "memory_mb": st.just(64) | JSON,
     "cpus": st.just(1.0) | JSON}
)  # fmt: skip


@dataclass
class Tally:
    """The outcomes of a target's inputs."""

    inputs: int = 0
    crashes: list[str] = field(default_factory=list)
    failures: int = 0
    """Replies with a status of 500 or more."""


def damaged(data: bytes) -> st.SearchStrategy[bytes]:
    """Return bytes with some of them changed, cut off or added."""

    def change(where: int, what: bytes, cut: int) -> bytes:
        at = where % (len(data) + 1)
        return data[:at] + what + data[at + cut :]

    return st.builds(change, st.integers(0, 10**6), st.binary(max_size=8), st.integers(0, 16))


def attempt(strategy: st.SearchStrategy[Any], act: Callable[[Any], None], count: int, number: int,
            tally: Tally) -> Tally:  # fmt: skip
    """Try so many inputs; any exception but a Shoal error is a crash."""
    if count < 1:
        return tally

    @seed(number)
    @settings(max_examples=count, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(strategy)
    def run(value: Any) -> None:
        tally.inputs += 1
        try:
            act(value)
        except ShoalError:
            return
        except Exception:  # noqa: BLE001 - that is what is looked for
            tally.crashes.append(f"{value!r:.300}\n{traceback.format_exc(limit=-3)}")

    run()
    while tally.inputs < count and not tally.crashes:  # hypothesis ran out of cases
        before = tally.inputs
        number += 1
        seed(number)(run)()
        if tally.inputs == before:
            break
    return tally


def fuzz_codec(count: int, number: int) -> Tally:
    """Check that a damaged blob is rejected, or decodes to the same value with other raw data."""
    values = [7, "text", [1, {"a": (2.5, None)}], b"x" * 100, bytearray(b"y" * 200)]
    blobs = [b"".join(bytes(part) for part in encode(value, _KEY, "fuzz")) for value in values]
    strategy = st.one_of(st.binary(max_size=200), *map(damaged, blobs))
    known = {repr(value) for value in values}

    def act(data: bytes) -> None:
        found = decode(data, _KEY, "fuzz")
        assert repr(found) in known or isinstance(found, bytearray), "a forged value was accepted"

    return attempt(strategy, act, count, number, Tally())


def fuzz_invocation(count: int, number: int) -> Tally:
    """Check that a request is rejected, or survives a round trip."""
    whole = to_json(StartRequest(context=_CONTEXT, starts=(_START,)))
    text = st.text(max_size=50) | st.binary(max_size=50) | damaged(whole)

    def act(value: Any) -> None:
        kind = WarmUpRequest if isinstance(value, dict) and "count" in value else StartRequest
        found = (from_json if isinstance(value, str | bytes) else checked)(value, kind)
        assert from_json(to_json(found), kind) == found

    return attempt(DAMAGED_STARTS | DAMAGED_WARM_UP | JSON | text, act, count, number, Tally())


def fuzz_records(count: int, number: int) -> Tally:
    """Check that a timeline record is decoded or rejected."""
    record = encode_record(WorkerId("w0"), [(0, -1, 1.0, 2.0, 0.0, 0), (3, 0, 2.0, 3.0, 1.0, 8)])
    head = st.builds(lambda value: json.dumps(value).encode() + b"\n" + b"\0" * 48, JSON)
    strategy = st.binary(max_size=200) | damaged(record) | head

    def act(data: bytes) -> None:
        decode_records([data], [TaskId("a#0")], 0.0, 1.0)

    return attempt(strategy, act, count, number, Tally())


def fuzz_settings(count: int, number: int) -> Tally:
    """Check that settings from every source are accepted or rejected."""
    text = st.text(st.characters(codec="utf-8"), max_size=30)
    name = st.sampled_from(NAMES) | text
    toml = st.builds(lambda k, v: f"{k} = {v}", name, text) | text | st.just("a = " + "[" * 5000)
    line = st.builds(lambda k, v: f"{k}={v}", name, text | st.sampled_from(["{[]:1}", "(" * 500]))
    url = st.builds(lambda scheme, rest: f"{scheme}://{rest}", st.sampled_from(
        ["redis", "rediss", "unix", "http", "https", ""]), text)  # fmt: skip

    def act(value: tuple[str, Any]) -> None:
        kind, given = value
        if kind == "arguments":
            resolve(given)
        elif kind == "toml":
            Path("shoal.toml").write_text(given, encoding="utf-8")
            try:
                resolve({})
            finally:
                Path("shoal.toml").unlink()
        elif kind == "line":
            resolve(parse_assignments([given]))
        elif kind == "store":
            parse_url(given)
        else:
            HttpPlatform(given, "token")

    strategy = st.one_of(
        st.tuples(st.just("arguments"), st.dictionaries(name, JSON, max_size=3)),
        st.tuples(st.just("toml"), toml),
        st.tuples(st.just("line"), line),
        st.tuples(st.just("store"), url),
        st.tuples(st.just("platform"), url),
    )
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return attempt(strategy, act, count, number, Tally())


class Gateway:
    """A gateway in a separate process, whose sandboxes do nothing."""

    def __init__(self, folder: Path) -> None:
        program = (
            "import sys, time; from pathlib import Path; from shoal.platform.logs import RunLogs\n"
            "from shoal.platform.gateway import LocalGateway\n"
            "from shoal.platform.server import GatewayServer\n"
            "logs = RunLogs(Path(sys.argv[1]))\n"
            "gateway = LocalGateway('platform_entries:nothing', logs, capacity=4)\n"
            "print(GatewayServer(gateway, sys.argv[2]).url, flush=True)\n"
            "sys.stdin.read()\n"
            "gateway.close()\n"
        )
        path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
        self.log = folder / "gateway.log"
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program, str(folder), _TOKEN],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=dict(os.environ) | {"PYTHONPATH": path},
                text=True,
            )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()

    def memory(self) -> int:
        """Return the memory of its process in bytes, once nothing waits for a sandbox."""
        platform = HttpPlatform(self.url, _TOKEN)
        deadline = time.monotonic() + _SECONDS
        while platform.status()["queued"] and time.monotonic() < deadline:
            time.sleep(0.05)
        platform.close()
        fields = Path(f"/proc/{self._process.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    def close(self) -> None:
        """Stop it."""
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(_SECONDS)


def _judge(status: int, tally: Tally) -> None:
    if status >= 500:
        tally.failures += 1


def fuzz_jobs(count: int, number: int, url: str) -> Tally:
    """Send damaged invocations over HTTP."""
    tally = Tally()
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=_SECONDS)
    whole = st.tuples(st.sampled_from(["/job", "/fanout", "/warmup"]),
                      JSON | DAMAGED_STARTS | DAMAGED_WARM_UP)  # fmt: skip

    def act(value: tuple[str, Any]) -> None:
        path, body = value
        connection.request("POST", path, json.dumps(body), {"Authorization": f"Bearer {_TOKEN}"})
        response = connection.getresponse()
        response.read()
        _judge(response.status, tally)

    with contextlib.closing(connection):
        return attempt(whole, act, count, number, tally)


def fuzz_bytes(count: int, number: int, url: str) -> Tally:
    """Send what is hardly HTTP; the status must be below 500, if there is one."""
    tally = Tally()
    request = f"POST /job HTTP/1.1\r\nAuthorization: Bearer {_TOKEN}\r\nContent-Length: 2\r\n\r\n[]"
    parts = urlsplit(url)

    def act(data: bytes) -> None:
        sock = socket.create_connection((str(parts.hostname), int(parts.port or 0)), _SECONDS)
        with sock, contextlib.suppress(ConnectionError):
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            answer = sock.recv(1 << 16)
            if answer.startswith(b"HTTP/1.1 "):
                _judge(int(answer[9:12]), tally)

    return attempt(st.binary(max_size=100) | damaged(request.encode()), act, count, number, tally)


def fuzz_interface(count: int, number: int, url: str) -> Tally:
    """Send valid and invalid requests that schemathesis derives from the gateway's description."""
    import requests
    import schemathesis
    from schemathesis.generation.modes import GenerationMode

    with requests.Session() as session:
        tally = Tally()
        headers = {"Authorization": f"Bearer {_TOKEN}"}
        described = session.get(f"{url}/openapi.json", headers=headers, timeout=_SECONDS).json()
        operations = [found.ok() for found in schemathesis.openapi.from_dict(
            described).get_all_operations()]  # fmt: skip
        chosen = random.Random(number)

        def act(case: Any) -> None:
            given = headers if chosen.random() < 0.8 else {}
            try:
                response = case.call(base_url=url, headers=given, session=session, timeout=_SECONDS)
            except (requests.exceptions.InvalidHeader, requests.exceptions.InvalidURL,
                    UnicodeError):  # fmt: skip
                return  # requests can't send it
            _judge(response.status_code, tally)

        plain = [operation for operation in operations if not operation.body]
        for group, inputs in ((plain, count), ([*operations], 0)):
            for operation in group:
                bodies = max(1, count // _BODIES // len(operations)) if operation.body else 0
                for mode in GenerationMode:
                    share = bodies if not inputs else inputs // len(plain) // len(GenerationMode)
                    own = Tally()
                    attempt(operation.as_strategy(generation_mode=mode), act, share, number, own)
                    tally.inputs += own.inputs
                    tally.crashes += own.crashes
    return tally


PARSERS: dict[str, Callable[[int, int], Tally]] = {
    "codec": fuzz_codec,
    "invocation": fuzz_invocation,
    "records": fuzz_records,
    "settings": fuzz_settings,
}
DOORS: dict[str, Callable[[int, int, str], Tally]] = {
    "jobs": fuzz_jobs,
    "bytes": fuzz_bytes,
    "interface": fuzz_interface,
}


@contextlib.contextmanager
def gateway() -> Iterator[Gateway]:
    """Run a gateway until the end of the block."""
    with tempfile.TemporaryDirectory() as folder:
        made = Gateway(Path(folder))
        try:
            yield made
        finally:
            made.close()


def main() -> int:
    """Fuzz every target and print the outcomes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=100_000, help="how many in all (100000)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    args = parser.parse_args()
    print(f"seed {args.seed}")
    tallies: dict[str, Tally] = {}

    def report(name: str, tally: Tally) -> None:
        tallies[name] = tally
        print(f"{name:<12} {tally.inputs:>8} inputs {len(tally.crashes):>4} crashes "
              f"{tally.failures:>4} times 5xx", flush=True)  # fmt: skip
        for crash in tally.crashes[:5]:
            print(crash)

    for name, fuzz in PARSERS.items():
        report(name, fuzz(args.inputs * SHARES[name] // 100, args.seed))
    with gateway() as made:
        fuzz_jobs(max(20, args.inputs // 500), args.seed + 1, made.url)  # loads everything
        before = made.memory()
        for name, knock in DOORS.items():
            report(name, knock(args.inputs * SHARES[name] // 100, args.seed, made.url))
        growth = made.memory() - before
        defects = made.log.read_text().count("Traceback")
    inputs = sum(tally.inputs for tally in tallies.values())
    crashes = sum(len(tally.crashes) for tally in tallies.values())
    failures = sum(tally.failures for tally in tallies.values())
    print(f"{inputs} inputs, {crashes} crashes, {failures} times 5xx, {defects} tracebacks in the "
          f"gateway's log, its memory grew by {growth / 2**20:.1f} MiB")  # fmt: skip
    return 1 if crashes or failures or defects else 0


if __name__ == "__main__":
    sys.exit(main())
