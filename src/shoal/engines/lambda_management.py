"""AWS's management API: creates, updates and deletes what a deployment consists of.

Repeating a deployment changes only what differs. What Shoal hasn't made stays as it is.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from shoal.engines.aws_api import Access, import_boto3
from shoal.engines.aws_lambda import AND_WAIT, CHECK, EVENT_AGE_SECONDS, invoke
from shoal.engines.function_package import Say
from shoal.engines.lambda_stack import LOG_DAYS, TAG, Stack, role_policy, trust_policy
from shoal.errors import PlatformError, SettingsError

_UPLOAD_NBYTES = 50 * 2**20
"""The most bytes of a zip that needs no bucket."""
_ROLE_SECONDS, _ROLE_PAUSE = 60.0, 2.0
"""How long Lambda may take to learn of a new role."""


class Deploying:
    """One deployment on its way."""

    def __init__(self, args: argparse.Namespace, stack: Stack, say: Say) -> None:
        self._args, self._stack, self._say = args, stack, say
        self._session = session_of(args)
        self._region = str(self._session.region_name)
        self._lambda = client_of(self._session, "lambda", args)

    def carry_out(self, package: Path | None) -> None:
        """Create or update everything."""
        stack = self._stack
        account = client_of(self._session, "sts", self._args).get_caller_identity()
        partition, number = account["Arn"].split(":")[1], account["Account"]
        prefix = f"arn:{partition}:{{service}}:{self._region}:{number}:{{resource}}"
        if stack.secret:
            self._write_secret()
        role = self._role(prefix)
        code = self._code(package)
        for name, memory_mb in stack.functions.items():
            self._keep_logs(name)
            self._function(name, memory_mb, role, code, package)
            self._settings(name, prefix)
        if not self._args.no_check:
            self._check()
        self._say(f'done: set platform = "{stack.platform(self._region)}"')

    def _write_secret(self) -> None:
        text = json.dumps(dict(self._stack.variables))
        name = self._stack.secret
        if name.startswith("ssm:"):
            ssm = client_of(self._session, "ssm", self._args)
            name = name.removeprefix("ssm:")
            ssm.put_parameter(Name=name, Value=text, Type="SecureString", Overwrite=True)
        else:
            manager = client_of(self._session, "secretsmanager", self._args)
            try:
                manager.put_secret_value(SecretId=name, SecretString=text)
            except manager.exceptions.ResourceNotFoundException:
                manager.create_secret(Name=name, SecretString=text)
        self._say(f"secret {name}: written")

    def _role(self, prefix: str) -> str:
        """The ARN of the role, which exists then."""
        iam = client_of(self._session, "iam", self._args)
        name, stack = self._stack.role(self._region), self._stack
        try:
            arn = iam.get_role(RoleName=name)["Role"]["Arn"]
            self._say(f"role {name}: exists")
        except iam.exceptions.NoSuchEntityException:
            trust = json.dumps(trust_policy())
            tags = [{"Key": TAG, "Value": stack.name}]
            made = iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust, Tags=tags)
            arn = made["Role"]["Arn"]
            self._say(f"role {name}: created")
        policy = json.dumps(role_policy(stack, prefix))
        iam.put_role_policy(RoleName=name, PolicyName="worker", PolicyDocument=policy)
        return str(arn)

    def _code(self, package: Path | None) -> dict[str, Any]:
        """Where Lambda finds the code."""
        if package is None:
            return {"ImageUri": self._stack.image}
        if package.stat().st_size <= _UPLOAD_NBYTES:
            return {"ZipFile": package.read_bytes()}
        bucket, key = self._args.bucket, f"shoal/{package.name}"
        if not bucket:
            raise SettingsError(
                f"The package has {package.stat().st_size / 2**20:.0f} MB, and Lambda takes 50 "
                "directly: name an S3 bucket with --bucket."
            )
        self._say(f"uploading the package to s3://{bucket}/{key}")
        client_of(self._session, "s3", self._args).upload_file(str(package), bucket, key)
        return {"S3Bucket": bucket, "S3Key": key}

    def _keep_logs(self, name: str) -> None:
        logs = client_of(self._session, "logs", self._args)
        group = f"/aws/lambda/{name}"
        with contextlib.suppress(logs.exceptions.ResourceAlreadyExistsException):
            logs.create_log_group(logGroupName=group)
        logs.put_retention_policy(logGroupName=group, retentionInDays=LOG_DAYS)

    def _function(
        self, name: str, memory_mb: int, role: str, code: dict[str, Any], package: Path | None
    ) -> None:
        wanted = self._stack.configuration(memory_mb) | {"Role": role}
        try:
            found = self._lambda.get_function(FunctionName=name)
        except self._lambda.exceptions.ResourceNotFoundException:
            self._create(name, wanted, code)
            return
        if found.get("Tags", {}).get(TAG) != self._stack.name:
            raise SettingsError(
                f"There is another function {name!r} in {self._region} that Shoal hasn't made: "
                "choose another --name."
            )
        changed = []
        if not self._has_code(found, package):
            self._lambda.update_function_code(
                FunctionName=name, Architectures=[self._stack.machine], **code
            )
            self._wait(name, "function_updated_v2")
            changed.append("code")
        if _differs(found["Configuration"], wanted):
            self._lambda.update_function_configuration(FunctionName=name, **wanted)
            self._wait(name, "function_updated_v2")
            changed.append("configuration")
        self._say(
            f"function {name}: {' and '.join(changed) + ' updated' if changed else 'unchanged'}"
        )

    def _has_code(self, found: dict[str, Any], package: Path | None) -> bool:
        if package is None:
            return bool(found["Code"].get("ImageUri") == self._stack.image)
        digest = base64.b64encode(hashlib.sha256(package.read_bytes()).digest()).decode()
        return bool(found["Configuration"]["CodeSha256"] == digest)

    def _create(self, name: str, wanted: dict[str, Any], code: dict[str, Any]) -> None:
        given: dict[str, Any] = {"PackageType": "Image"} if self._stack.image else {}
        create = partial(
            self._lambda.create_function,
            FunctionName=name,
            Architectures=[self._stack.machine],
            Tags={TAG: self._stack.name},
            Code=code,
            **wanted,
            **given,
        )
        self._when_the_role_is_known(create, name)
        self._wait(name, "function_active_v2")
        self._say(f"function {name}: created")

    def _when_the_role_is_known(self, call: Callable[[], Any], name: str) -> None:
        """Make a call, again while Lambda doesn't know a new role or what it permits."""
        deadline = time.monotonic() + _ROLE_SECONDS
        while True:
            try:
                call()
                return
            except self._lambda.exceptions.InvalidParameterValueException as error:
                if "role" not in str(error).lower() or time.monotonic() > deadline:
                    raise
                self._say(f"function {name}: waiting until Lambda knows the role")
                time.sleep(_ROLE_PAUSE)

    def _wait(self, name: str, state: str) -> None:
        config = {"Delay": 1, "MaxAttempts": 300}
        self._lambda.get_waiter(state).wait(FunctionName=name, WaiterConfig=config)

    def _settings(self, name: str, prefix: str) -> None:
        """How Lambda treats its events, and how many of them at once."""
        destination = prefix.format(
            service="lambda", resource=f"function:{next(iter(self._stack.functions))}"
        )
        configure = partial(
            self._lambda.put_function_event_invoke_config,
            FunctionName=name,
            MaximumRetryAttempts=0,
            MaximumEventAgeInSeconds=EVENT_AGE_SECONDS,
            DestinationConfig={"OnFailure": {"Destination": destination}},
        )
        self._when_the_role_is_known(configure, name)
        reserved = self._stack.reserved().get(name)
        if reserved is None:
            self._lambda.delete_function_concurrency(FunctionName=name)
        else:
            self._lambda.put_function_concurrency(
                FunctionName=name, ReservedConcurrentExecutions=reserved
            )

    def _check(self) -> None:
        """Call each function once, and compare what it has."""
        with contextlib.closing(Access(self._region, self._args.endpoint)) as access:
            for name in self._stack.functions:
                answer = json.loads(invoke(access, name, json.dumps(CHECK).encode(), AND_WAIT))
                self._say(f"function {name}: {self._found(name, answer)}")

    def _found(self, name: str, answer: dict[str, Any]) -> str:
        """What a function has; raises an error if that isn't what was deployed."""
        found = answer.get("environment")
        if self._stack.image and found == "":
            return f"answers, with Python {answer['python']} and an environment without a name"
        if found == self._stack.environment:
            return f"answers, with Python {answer['python']}"
        if self._stack.image and found:
            raise PlatformError(
                f"The image {self._stack.image} has the environment {found}, and this client's is "
                f"{self._stack.environment}: build the image again."
            )
        raise PlatformError(f"The function {name!r} doesn't work: {answer}.")


def _differs(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether a function's configuration lacks something that is wanted."""
    for name, value in wanted.items():
        if isinstance(value, dict):
            if _differs(found.get(name) or {}, value):
                return True
        elif isinstance(value, list):
            if sorted(found.get(name) or []) != sorted(value):
                return True
        elif found.get(name) != value:
            return True
    return False


def deployed(functions: Any, name: str) -> Iterator[str]:
    """The functions of a deployment."""
    for page in functions.get_paginator("list_functions").paginate():
        for each in page["Functions"]:
            if re.fullmatch(rf"{re.escape(name)}-\d+", each["FunctionName"]):
                tags = functions.list_tags(Resource=each["FunctionArn"])["Tags"]
                if tags.get(TAG) == name:
                    yield each["FunctionName"]


def delete_role(iam: Any, role: str) -> None:
    """Delete a role and its policies."""
    for policy in iam.list_role_policies(RoleName=role)["PolicyNames"]:
        iam.delete_role_policy(RoleName=role, PolicyName=policy)
    iam.delete_role(RoleName=role)


def session_of(args: argparse.Namespace) -> Any:
    """A session of boto3 in the region that the options or the configuration name."""
    session = import_boto3().session.Session(region_name=args.region)
    if session.region_name is None:
        raise SettingsError("The AWS region is unknown: name it with --region, or set AWS_REGION.")
    return session


def client_of(session: Any, service: str, args: argparse.Namespace) -> Any:
    """A client of one service."""
    return session.client(service, endpoint_url=args.endpoint)


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Turn errors of boto3 into errors of Shoal."""
    try:
        import botocore.exceptions as errors
    except ImportError:
        yield  # boto3 is missing, which whatever needs it says
        return
    try:
        yield
    except (errors.NoCredentialsError, errors.PartialCredentialsError) as error:
        raise SettingsError(
            "No AWS credentials were found. Run `aws configure` or `aws sso login`, or set "
            f"AWS_PROFILE: {error}."
        ) from error
    except errors.ClientError as error:
        raise _refusal(error) from error
    except errors.EndpointConnectionError as error:
        raise PlatformError(
            f"AWS doesn't answer: {error}. Check the region's name and the network."
        ) from error
    except errors.BotoCoreError as error:
        raise PlatformError(f"AWS can't be used: {error}.") from error


def _refusal(error: Any) -> PlatformError:
    """An error that AWS returned, with what to do about it."""
    code, text = error.response["Error"]["Code"], error.response["Error"].get("Message", "")
    action = error.operation_name
    if code in ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation"):
        return PlatformError(
            f"AWS doesn't permit you {action}: {text}. Ask for that permission, or have an "
            "administrator deploy what `shoal deploy lambda --template FILE` writes."
        )
    if code in ("ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId",
                "UnrecognizedClientException", "SignatureDoesNotMatch"):  # fmt: skip
        return PlatformError(f"AWS rejected the credentials ({code}): {text}. Log in again.")
    return PlatformError(f"AWS refused {action} ({code}): {text}.")
