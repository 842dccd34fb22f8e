"""Measure Lithops, in an environment of its own, as `engines.py` measures Shoal.

`python lithops_peer.py BACKEND REPEATS FILE PYTHON`: the backend is `localhost`, `localhost-v1` or
`lambda`, and PYTHON is the interpreter of the environment that has Lithops.

1. On localhost, storage is files, and everything else is Lithops' default. Version 2 of this
   backend, the default, starts a process for each call; version 1 forks the calls of a job.
2. On Lambda's emulator there are as many environments as for Shoal. Storage and monitoring are a
   Valkey server like Shoal's: faster than Lithops' defaults, S3 and polling every two seconds.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from engine_figures import CALLS, FUNCTION
from lambda_emulator import Emulator, emulator, serving

from store_servers import PASSWORD, tcp_server

HERE = Path(__file__).parent
ENVIRONMENTS = 4
MEMORY_MB = 256
"""Lithops' default; the emulator doesn't enforce it."""


def localhost(python: str, version: int) -> dict[str, Any]:
    """Return the configuration of the backend `localhost`."""
    return {
        "lithops": {"backend": "localhost", "storage": "localhost"},
        "localhost": {"runtime": python, "version": version},
    }


def on_lambda(port: int) -> dict[str, Any]:
    """Return the configuration of the backend `aws_lambda`, and of storage on a server."""
    return {
        "lithops": {"backend": "aws_lambda", "storage": "redis", "monitoring": "redis"},
        "aws": {"region": "eu-west-1", "access_key_id": "x", "secret_access_key": "x"},
        "aws_lambda": {
            "execution_role": "arn:aws:iam::123456789012:role/lithops",
            "account_id": "123456789012",
            "user_id": "AIDAEXAMPLE",
            "runtime_memory": MEMORY_MB,
        },
        "redis": {"host": "127.0.0.1", "port": port, "password": PASSWORD},
    }


@contextmanager
def emulated(folder: Path, packages: Path) -> Iterator[str]:
    """Yield the endpoint of an emulated function with Lithops' own handler."""
    code, place = folder / "code", folder / "lambda"
    code.mkdir()
    place.mkdir()
    backend = packages / "lithops" / "serverless" / "backends" / "aws_lambda"
    shutil.copy(backend / "entry_point.py", code)
    made = Emulator(
        {FUNCTION: MEMORY_MB}, {}, place, most=ENVIRONMENTS, code=f"{code}{os.pathsep}{packages}",
        handler="entry_point.lambda_handler",
    )  # fmt: skip
    with serving(made) as endpoint:
        yield endpoint
    for error in made.errors[:3]:
        print(error, file=sys.stderr)


def run(python: str, config: Mapping[str, Any], repeats: str, path: str, **more: str) -> None:
    """Run `map` in Lithops' environment."""
    command = [python, str(HERE / "lithops_map.py"), str(CALLS), repeats, path]
    with tempfile.TemporaryDirectory(prefix="lithops-", ignore_cleanup_errors=True) as folder:
        variables = {"LITHOPS_CONFIG": json.dumps(config), "TMPDIR": folder, **more}
        subprocess.run(command, env=os.environ | variables, check=True)


def main() -> None:
    """Measure one backend."""
    name, repeats, path, python = sys.argv[1:]
    if name != "lambda":
        run(python, localhost(python, 1 if name.endswith("v1") else 2), repeats, path)
        return
    if emulator() is None:
        Path(path).write_text(json.dumps({"skipped": "pip install awslambdaric aws-sam-cli"}))
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lithops-")))
        (packages,) = Path(python).parents[1].glob("lib/python3*/site-packages")
        port = stack.enter_context(tcp_server())
        endpoint = stack.enter_context(emulated(folder, packages))
        run(python, on_lambda(port), repeats, path, AWS_ENDPOINT_URL_LAMBDA=endpoint)


if __name__ == "__main__":
    main()
