"""`lambda://FUNCTION?region=…`: each worker is an invocation of an AWS Lambda function.

1. Lambda's memory belongs to a function's configuration, so a deployment has a function for each
   memory size: FUNCTION-1024, FUNCTION-2048. A worker runs in the smallest that suffices. Versions
   of one function could have different sizes, too, but only if they are published one after the
   other, which a CloudFormation template can't do.
2. Invocations are asynchronous. Lambda's own retries are off: Shoal restarts lost workers.
3. A worker that starts others invokes the functions itself, so a fan-out needs few calls of the
   client.
4. Lambda tells the smallest function about each invocation that failed or found no function in
   time, as the destination of failures, and that function restarts the workers.
5. Lambda freezes a process between invocations, and ends it without notice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from shoal.engines.aws_api import Access, refusal
from shoal.errors import GatewayBusy, GatewayRefused, PlatformError, SettingsError, ShoalError
from shoal.platform.engine import Ended, EngineFacts, JobState
from shoal.platform.environment import (
    ANY,
    ENVIRONMENT_VARIABLE,
    client_environment,
    minor_of,
    mismatch,
)
from shoal.platform.events import KEY_VARIABLE, STORE_VARIABLE, Deployment
from shoal.platform.invocation import PythonEnvironment
from shoal.types import MB_PER_CPU, LossReason, Resources

DEFAULT_MEMORY = (1024, 2048, 3008)
"""The sizes of a deployment that names none. A new AWS account offers no more than 3008 MB."""
MAX_MEMORY_MB = 10_240
PAYLOAD_NBYTES = 256 * 1024
"""The most bytes of an asynchronous event that every region takes, and that is billed as one
request. Lambda takes 1 MB in most regions, and bills each further 64 KB as another request."""
SECONDS = 900.0
"""How long Lambda lets a function run."""
EVENT_AGE_SECONDS = 300
"""How long Lambda keeps an event that finds no free function."""
SECRET_VARIABLE = "SHOAL_SECRET"
"""Names the secret that holds the store's URL and the deployment's key."""
_OPTIONS = ("region", "memory", "seconds", "concurrency", "endpoint")
_CONCURRENCY = 1000
"""How many functions of an account may run at once, unless AWS has granted more."""


class LambdaEngine:
    """Invokes Lambda functions."""

    def __init__(self, url: str, deployment: Deployment, folder: Path) -> None:
        """Make an engine from `lambda://shoal?region=eu-west-1&memory=1024,2048`."""
        self.name, options = function_and_options(url)
        self.expected = ANY
        self._deployment, self._folder = deployment, folder
        self._sizes = memory_sizes(options.get("memory"), url)
        largest = self._sizes[-1]
        self._access = Access(options.get("region"), options.get("endpoint"))
        self.facts = EngineFacts(
            stays=False,
            nests=True,
            memory_mb=largest,
            memory_steps=tuple(self._sizes),
            cpus=largest / MB_PER_CPU,
            capacity=int(options.get("concurrency", _CONCURRENCY)),
            payload_nbytes=PAYLOAD_NBYTES,
            seconds=float(options.get("seconds", SECONDS)),
            queue_seconds=EVENT_AGE_SECONDS,
            prices="aws-lambda",
        )

    def start(self, event: bytes, resources: Resources) -> str:
        """Invoke the smallest function that has the memory."""
        function = self.function(resources.memory_mb)
        invoke(self._access, function, event, "Event")
        return function

    def function(self, memory_mb: int) -> str:
        """The function for workers with this much memory."""
        sufficient = [size for size in self._sizes if size >= memory_mb]
        return f"{self.name}-{(sufficient or self._sizes[-1:])[0]}"

    def states(self, handles: Sequence[str]) -> Mapping[str, JobState]:
        """Tell nothing: Lambda doesn't say how an invocation is."""
        return {}

    def kill(self, handle: str) -> None:
        """Do nothing: Lambda ends no invocation. A job ends the worker of a cancelled run."""

    def check(self, *, thorough: bool = False) -> str:
        """Call the function of a worker with a CPU, or all, and compare them with this client."""
        from shoal.engines.environment import expected

        again = f"shoal deploy lambda --name {self.name}"
        self.expected = expected(self._folder, "lambda", self.name, again)
        functions = [self.function(size) for size in self._sizes]
        try:
            for function in functions if thorough else [self.function(MB_PER_CPU)]:
                answer = invoke(self._access, function, json.dumps(CHECK).encode(), AND_WAIT)
                self._compare(function, answer)
        except GatewayBusy:
            if thorough:
                raise
            return "busy"  # workers wait for their turn, and compare versions themselves
        known = "" if self.expected.name else "; they weren't deployed from here"
        return f"{len(functions)} functions {self.name}-… in {self._access.region} answer{known}"

    def _compare(self, function: str, answer: bytes) -> None:
        """Raise an error if a function can't run this client's workers."""
        found = json.loads(answer)
        if not isinstance(found, dict) or "python" not in found:
            raise PlatformError(f"The Lambda function {function!r} doesn't work: {found}.")
        there = PythonEnvironment(
            python=minor_of(found["python"]), shoal=found["shoal"], name=found["environment"]
        )
        problem = mismatch(
            client_environment(self.expected), there, f"in the Lambda function {function!r}"
        )
        if problem is not None:
            raise problem
        if found["trouble"]:
            raise PlatformError(f"The Lambda function {function!r} can't work: {found['trouble']}")
        if found["deployment"] != self._deployment.id:
            raise GatewayRefused(
                f"The Lambda function {function!r} has another deployment's key. Run "
                f"`{self.expected.renewal}`, or use the data folder that it was deployed from."
            )

    def close(self) -> None:
        """Close the connections to AWS."""
        self._access.close()


def function_and_options(url: str) -> tuple[str, dict[str, str]]:
    """The name and the options in a `lambda://` URL."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    wrong = "" if parts.netloc else "it names no function"
    for name in options:
        if name not in _OPTIONS:
            wrong = f"{name!r} is no option of it"
        elif name in ("seconds", "concurrency") and not options[name].isdigit():
            wrong = f"{name}={options[name]!r} isn't a whole number"
    if wrong:
        raise SettingsError(
            f"platform={url!r}: {wrong}. It looks like lambda://shoal?region=eu-west-1&"
            f"memory=1024,2048; options are {', '.join(_OPTIONS)}."
        )
    return parts.netloc, options


def memory_sizes(text: str | None, where: str) -> list[int]:
    """The memory sizes in a comma-separated list, smallest first."""
    if text is None:
        return list(DEFAULT_MEMORY)
    sizes = [part.strip() for part in text.split(",")]
    if not all(size.isdigit() and 128 <= int(size) <= MAX_MEMORY_MB for size in sizes):
        raise SettingsError(
            f"{where}: memory={text!r} isn't a list of sizes in MB from 128 to {MAX_MEMORY_MB}, "
            "such as 1024,2048."
        )
    return sorted({int(size) for size in sizes})


def invoke(access: Access, function: str, event: bytes, way: str) -> bytes:
    """Invoke a function: `Event` returns at once, `RequestResponse` with what it returns."""
    path = f"/2015-03-31/functions/{quote(function, safe='')}/invocations"
    headers = {"content-type": "application/json", "x-amz-invocation-type": way}
    status, answer = access.post("lambda", path, event, headers)
    if status >= 300:
        raise refusal(status, answer, function, access.region)
    return answer


def _job() -> ModuleType:
    from shoal.platform import job  # a client doesn't need it

    return job


if "AWS_LAMBDA_FUNCTION_NAME" in os.environ:
    _job()  # Lambda lends a new process more CPU than its functions get later


def handler(event: Any, context: Any) -> dict[str, Any]:
    """Run a worker: what Lambda calls with each event."""
    if event == CHECK:
        return facts()
    _read_secret()
    if "requestContext" in event:
        return {"lost": report_failure(event)}
    seconds = context.get_remaining_time_in_millis() / 1000
    memory_mb = int(context.memory_limit_in_mb)
    done: dict[str, Any] = _job().run(event, seconds=seconds, memory_mb=memory_mb)
    return done


def report_failure(record: Mapping[str, Any]) -> list[str]:
    """Restart the workers of an invocation that Lambda says has failed, or came to nothing.

    Args:
        record: What Lambda sends to the destination of failed asynchronous invocations.
    """
    from shoal.platform import failed_call

    event, answer = record["requestPayload"], record.get("responsePayload") or {}
    if "requestContext" in event:
        return []  # the report of a failure has failed
    said = str(answer.get("errorMessage", "")) if isinstance(answer, Mapping) else str(answer)
    condition = record["requestContext"]["condition"]
    how = Ended(reason_of(said), None, f"Lambda says {condition}" + (f": {said}" if said else ""))
    workers: list[str] = failed_call.report(event, how, begun=condition != "EventAgeExceeded")
    return workers


def reason_of(said: str) -> LossReason:
    """Why an invocation failed, from its error: Lambda kills what exceeds its memory."""
    if "signal: killed" in said or "OutOfMemory" in said:
        return LossReason.OUT_OF_MEMORY
    return LossReason.TIME_LIMIT if "Task timed out" in said else LossReason.DIED


def _read_secret() -> None:
    """Set the variables that are in the deployment's secret, if it has one."""
    if SECRET_VARIABLE in os.environ and KEY_VARIABLE not in os.environ:
        os.environ.update(secret_variables(os.environ[SECRET_VARIABLE]))


AND_WAIT = "RequestResponse"
CHECK = {"shoal": "check"}
"""An event that asks a function what it has."""


def facts() -> dict[str, Any]:
    """What a function has: for clients that compare it, and for `shoal deploy`."""
    import platform
    from importlib.metadata import version

    trouble, deployed = "", ""
    try:
        _read_secret()
        deployment = Deployment.of_environment()
        deployed = deployment.id
        _job().check_store(deployment)
    except ShoalError as error:
        trouble = str(error)
    return {
        "shoal": version("shoal"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "environment": os.environ.get(ENVIRONMENT_VARIABLE, ""),
        "deployment": deployed,
        "trouble": trouble,
    }


def secret_variables(name: str) -> dict[str, str]:
    """The store's URL and the deployment's key in a secret.

    Args:
        name: `ssm:NAME` for a parameter of Systems Manager; else a secret of Secrets Manager.
    """
    access = Access(None, os.environ.get("AWS_ENDPOINT_URL"))
    if name.startswith("ssm:"):
        service, target = "ssm", "AmazonSSM.GetParameter"
        asked: dict[str, Any] = {"Name": name.removeprefix("ssm:"), "WithDecryption": True}
    else:
        service, target = "secretsmanager", "secretsmanager.GetSecretValue"
        asked = {"SecretId": name}
    headers = {"content-type": "application/x-amz-json-1.1", "x-amz-target": target}
    status, answer = access.post(service, "/", json.dumps(asked).encode(), headers)
    if status >= 300:
        raise SettingsError(
            f"The secret {name!r} can't be read ({status}): {answer.decode(errors='replace')}. The "
            "function's role must permit it: deploy again with --secret."
        )
    found = json.loads(answer)
    text = found["Parameter"]["Value"] if service == "ssm" else found["SecretString"]
    try:
        values = json.loads(text)
        return {name: str(values[name]) for name in (STORE_VARIABLE, KEY_VARIABLE)}
    except (ValueError, LookupError, TypeError) as error:
        raise SettingsError(
            f"The secret {name!r} must be a JSON object with {STORE_VARIABLE} and {KEY_VARIABLE}."
        ) from error
