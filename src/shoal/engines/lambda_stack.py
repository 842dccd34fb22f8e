"""What a deployment on AWS Lambda consists of, as data: functions, their role, their template.

`deploy_lambda.py` brings it about; `template` describes the same to CloudFormation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.engines.aws_lambda import (
    EVENT_AGE_SECONDS,
    SECONDS,
    SECRET_VARIABLE,
)
from shoal.platform.environment import ENVIRONMENT_VARIABLE
from shoal.platform.events import KEY_VARIABLE, STORE_VARIABLE
from shoal.platform.job import PASS_VARIABLE, PLATFORM_VARIABLE

HANDLER = "shoal.engines.aws_lambda.handler"
TAG = "shoal"
"""The tag that marks what belongs to a deployment; its value is the deployment's name."""
LOG_DAYS = 14


def repository_name(deployment: str) -> str:
    """The repository of a deployment's images in ECR."""
    return f"{deployment.lower()}-lambda"


_NETWORK = (
    "ec2:CreateNetworkInterface", "ec2:DeleteNetworkInterface", "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSubnets", "ec2:AssignPrivateIpAddresses", "ec2:UnassignPrivateIpAddresses",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stack:
    """A deployment: the same functions in several memory sizes."""

    name: str
    memory: tuple[int, ...]
    python: str
    machine: str
    environment: str
    """The name of its packages; an image has its own."""
    variables: Mapping[str, str] = field(repr=False)
    """The store's URL and the key; empty with a secret."""
    secret: str = ""
    image: str = ""
    """The URI of an image; empty: a zip."""
    concurrency: int | None = None
    """How many of its workers may run at once, reserved for it; None: what the account has."""
    pass_variables: str = ""
    """The variables of the functions that tasks get."""
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()

    def role(self, region: str) -> str:
        """The name of the functions' role; an account's regions share its names."""
        return role_name(self.name, region)

    @property
    def functions(self) -> dict[str, int]:
        """The memory of each function, by name."""
        return {f"{self.name}-{mb}": mb for mb in self.memory}

    @property
    def url(self) -> str:
        """The platform's URL, as the functions know it: they are in their own region."""
        limit = "" if self.concurrency is None else f"&concurrency={self.concurrency}"
        return f"lambda://{self.name}?memory={','.join(map(str, self.memory))}{limit}"

    def platform(self, region: str) -> str:
        """The platform's URL for clients."""
        return f"{self.url}&region={region}"

    def reserved(self) -> dict[str, int]:
        """The reserved concurrency of each function: the whole, split evenly."""
        if self.concurrency is None:
            return {}
        share = max(1, self.concurrency // len(self.memory))
        return dict.fromkeys(self.functions, share)

    def environment_variables(self) -> dict[str, str]:
        """The variables of its functions."""
        found = {PLATFORM_VARIABLE: self.url}
        found |= {} if self.image else {ENVIRONMENT_VARIABLE: self.environment}
        found |= {PASS_VARIABLE: self.pass_variables} if self.pass_variables else {}
        return found | ({SECRET_VARIABLE: self.secret} if self.secret else dict(self.variables))

    def configuration(self, memory_mb: int) -> dict[str, Any]:
        """What a function is configured with, as the API and CloudFormation name it."""
        found: dict[str, Any] = {
            "MemorySize": memory_mb,
            "Timeout": int(SECONDS),
            "Environment": {"Variables": self.environment_variables()},
            "Description": f"Workers of Shoal with {memory_mb} MB",
        }
        if not self.image:
            found |= {"Runtime": f"python{self.python}", "Handler": HANDLER}
        if self.subnets:
            found["VpcConfig"] = {
                "SubnetIds": list(self.subnets),
                "SecurityGroupIds": list(self.security_groups),
            }
        return found


def role_name(name: str, region: str) -> str:
    """The name of the role of a deployment's functions."""
    return f"{name}-worker-{region}"


def trust_policy() -> dict[str, Any]:
    """Only Lambda may take on the role."""
    principal = {"Service": "lambda.amazonaws.com"}
    allow = {"Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole"}
    return {"Version": "2012-10-17", "Statement": [allow]}


def role_policy(stack: Stack, prefix: str) -> dict[str, Any]:
    """The least that functions need: to invoke each other, and to write their logs.

    Args:
        stack: The deployment.
        prefix: Makes an ARN of a service and a resource, as in
            `arn:aws:{service}:eu-west-1:123456789012:{resource}`.
    """

    def arn(service: str, resource: str) -> str:
        return prefix.format(service=service, resource=resource)

    logs = arn("logs", f"log-group:/aws/lambda/{stack.name}-*:*")
    statements: list[dict[str, Any]] = [
        _allow("lambda:InvokeFunction", arn("lambda", f"function:{stack.name}-*")),
        _allow(["logs:CreateLogStream", "logs:PutLogEvents"], logs),
    ]
    if stack.secret.startswith("ssm:"):
        name = stack.secret.removeprefix("ssm:").lstrip("/")
        statements.append(_allow("ssm:GetParameter", arn("ssm", f"parameter/{name}")))
    elif stack.secret:
        named = arn("secretsmanager", f"secret:{stack.secret}-??????")
        exact = stack.secret if stack.secret.startswith("arn:") else named
        statements.append(_allow("secretsmanager:GetSecretValue", exact))
    if stack.subnets:
        statements.append(_allow(list(_NETWORK), "*"))
    return {"Version": "2012-10-17", "Statement": statements}


def _allow(action: str | list[str], resource: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": action, "Resource": resource}


def template(stack: Stack, key: str) -> dict[str, Any]:
    """The deployment as a CloudFormation template.

    Args:
        stack: The deployment.
        key: The name of the zip in the bucket that the template asks for.
    """
    code: dict[str, Any] = {"S3Bucket": {"Ref": "CodeBucket"}, "S3Key": {"Ref": "CodeKey"}}
    parameters: dict[str, Any] = {
        "CodeBucket": {"Type": "String", "Description": "The bucket with the package"},
        "CodeKey": {"Type": "String", "Default": key, "Description": "The package in the bucket"},
    }
    if stack.image:
        code, parameters = {"ImageUri": stack.image}, {}
    if not stack.secret:
        parameters |= {
            "Store": _hidden("The URL of the store (SHOAL_STORE)"),
            "DeploymentKey": _hidden("The deployment's key (SHOAL_DEPLOYMENT_KEY)"),
        }
    resources: dict[str, Any] = {"Role": _role(stack)}
    for name, memory_mb in stack.functions.items():
        resources |= _function(stack, name, memory_mb, code)
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"Workers of Shoal on AWS Lambda; environment {stack.environment}",
        **({"Parameters": parameters} if parameters else {}),
        "Resources": resources,
        "Outputs": {
            "Platform": {
                "Description": "The platform's URL for clients",
                "Value": {"Fn::Sub": f"{stack.url}&region=${{AWS::Region}}"},
            }
        },
    }


def _hidden(description: str) -> dict[str, Any]:
    return {"Type": "String", "NoEcho": True, "Description": description}


def _role(stack: Stack) -> dict[str, Any]:
    prefix = "arn:${{AWS::Partition}}:{service}:${{AWS::Region}}:${{AWS::AccountId}}:{resource}"
    policy = role_policy(stack, prefix)
    for statement in policy["Statement"]:
        if "${" in statement["Resource"]:
            statement["Resource"] = {"Fn::Sub": statement["Resource"]}
    return {
        "Type": "AWS::IAM::Role",
        "Properties": {
            "AssumeRolePolicyDocument": trust_policy(),
            "Policies": [{"PolicyName": "worker", "PolicyDocument": policy}],
            "Tags": [{"Key": TAG, "Value": stack.name}],
        },
    }


def _function(stack: Stack, name: str, memory_mb: int, code: dict[str, Any]) -> dict[str, Any]:
    """A function, its log group, and how its events are treated."""
    settings = stack.configuration(memory_mb)
    variables = settings["Environment"]["Variables"]
    if not stack.secret:
        given = {STORE_VARIABLE: {"Ref": "Store"}, KEY_VARIABLE: {"Ref": "DeploymentKey"}}
        settings["Environment"] = {"Variables": variables | given}
    if stack.image:
        settings["PackageType"] = "Image"
    if stack.concurrency is not None:
        settings["ReservedConcurrentExecutions"] = stack.reserved()[name]
    id_ = f"Function{memory_mb}"
    return {
        id_: {
            "Type": "AWS::Lambda::Function",
            "DependsOn": [f"Logs{memory_mb}"],
            "Properties": {
                "FunctionName": name,
                "Role": {"Fn::GetAtt": ["Role", "Arn"]},
                "Code": code,
                "Architectures": [stack.machine],
                "Tags": [{"Key": TAG, "Value": stack.name}],
                **settings,
            },
        },
        f"Events{memory_mb}": {
            "Type": "AWS::Lambda::EventInvokeConfig",
            "Properties": {
                "FunctionName": {"Ref": id_},
                "Qualifier": "$LATEST",
                "MaximumRetryAttempts": 0,
                "MaximumEventAgeInSeconds": EVENT_AGE_SECONDS,
                "DestinationConfig": {
                    "OnFailure": {
                        "Destination": {"Fn::GetAtt": [f"Function{stack.memory[0]}", "Arn"]}
                    }
                },
            },
        },
        f"Logs{memory_mb}": {
            "Type": "AWS::Logs::LogGroup",
            "DeletionPolicy": "Delete",
            "UpdateReplacePolicy": "Delete",
            "Properties": {"LogGroupName": f"/aws/lambda/{name}", "RetentionInDays": LOG_DAYS},
        },
    }
