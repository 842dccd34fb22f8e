"""AWS Lambda on this machine: Amazon's runtime in the emulator that SAM uses."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lambda_emulator import Emulator, emulator, serving

from observing import eventually, processes_mentioning
from shoal.platform.events import KEY_VARIABLE, STORE_VARIABLE, Deployment
from shoal.platform.job import PLATFORM_VARIABLE
from store_servers import tcp_server, url_of

MEMORY = (512, 1024, 2048)
"""The sizes of the emulated Lambda functions."""


@contextmanager
def lambda_functions(folder: Path) -> Iterator[tuple[str, str]]:
    """Jobs are invocations of Amazon's runtime, in the emulator that SAM uses."""
    if emulator() is None:
        pytest.skip("Lambda's emulator isn't installed: pip install awslambdaric aws-sam-cli")
    with tcp_server() as port:
        with emulated_lambda(folder, url_of(port)) as (platform, _):
            yield platform, url_of(port)
        assert eventually(lambda: not processes_mentioning("AWS_LAMBDA_FUNCTION_NAME=shoal-"))


@contextmanager
def emulated_lambda(
    folder: Path,
    store: str,
    most: int = 4,
    throttled: int = 7,
    seconds: int = 900,
    code: str | None = None,
) -> Iterator[tuple[str, Emulator]]:
    """The platform's URL, and the emulator, of functions that a client with a folder deployed."""
    deployment = Deployment.of_user(folder, store)
    variables = {STORE_VARIABLE: store, KEY_VARIABLE: deployment.key.hex()}
    sizes = {f"shoal-{mb}": mb for mb in MEMORY}
    place = Path(tempfile.mkdtemp(prefix="shoal-lambda-"))
    made = Emulator(sizes, variables, place, most, throttled, seconds, code)
    with serving(made) as endpoint:
        memory = ",".join(map(str, MEMORY))
        url = f"lambda://shoal?memory={memory}&seconds={seconds}&endpoint={endpoint}"
        variables[PLATFORM_VARIABLE] = url
        yield url, made
