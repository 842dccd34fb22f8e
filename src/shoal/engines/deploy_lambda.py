"""`shoal deploy lambda`: functions for workers, created or brought up to date; and their removal.

1. Repeating a deployment changes only what differs.
2. `--dry-run` prints the steps; `--template` writes them for CloudFormation. Neither needs a
   permission.
3. Errors of AWS become sentences that say what is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from shoal.engines import function_package, lambda_image
from shoal.engines.aws_lambda import (
    DEFAULT_MEMORY,
    EVENT_AGE_SECONDS,
    memory_sizes,
)
from shoal.engines.environment import command_of, forget, note
from shoal.engines.function_package import Contents, Say
from shoal.engines.lambda_management import (
    Deploying,
    client_of,
    delete_role,
    deployed,
    explained,
    session_of,
)
from shoal.engines.lambda_stack import (
    HANDLER,
    TAG,
    Stack,
    repository_name,
    role_name,
    template,
)
from shoal.errors import PlatformError, SettingsError
from shoal.platform.events import KEY_VARIABLE, STORE_VARIABLE, Deployment

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""The versions that Lambda offers."""
_MEMORY = ",".join(map(str, DEFAULT_MEMORY))
_NAME = re.compile(r"[A-Za-z0-9-]{1,40}")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `shoal deploy lambda`."""
    _configure_place(parser)
    add = parser.add_argument
    add("--memory", default=_MEMORY, metavar="MB,…", help="memory sizes of workers, one "
        "function each (default: %(default)s)")  # fmt: skip
    add("--requirements", type=Path, metavar="FILE", help="packages for tasks: a requirements or "
        "lock file (default: what is installed here)")  # fmt: skip
    add("--package", action="append", default=[], metavar="NAME", help="a package for tasks, in "
        "the version that is installed here; repeatable")  # fmt: skip
    add("--architecture", choices=("x86_64", "arm64"), default="x86_64", help="the processor")
    add("--image", default="", metavar="URI", help="use a container image instead of a zip")
    add("--bucket", default="", help="an S3 bucket for a zip of more than 50 MB")
    add("--secret", default="", metavar="NAME", help="a secret of Secrets Manager with the store's "
        "URL and the key, or ssm:NAME of Systems Manager; it is created or updated")  # fmt: skip
    add("--store", help="the store's URL as functions reach it (default: that of the settings)")
    add("--concurrency", type=int, metavar="N", help="reserve this many invocations at once")
    add("--pass-variables", default="", metavar="NAME,…", help="environment variables of the "
        "functions that tasks get; 'AWS_*' lets them use the functions' role")  # fmt: skip
    add("--subnets", default="", metavar="ID,…", help="subnets of the store's VPC")
    add("--security-groups", default="", metavar="ID,…", help="security groups in that VPC")
    add("--dry-run", action="store_true", help="print what would be done")
    add("--template", type=Path, metavar="FILE", help="write a CloudFormation template instead")
    add("--no-check", action="store_true", help="don't call the functions afterwards")


def configure_undeploy(parser: argparse.ArgumentParser) -> None:
    """Add the options of `shoal undeploy lambda`."""
    _configure_place(parser)
    parser.add_argument("--dry-run", action="store_true", help="print what would be deleted")


def _configure_place(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--name", default="shoal", help="the deployment's name (default: %(default)s)")
    add("--region", help="the AWS region (default: that of the AWS configuration)")
    add("--endpoint", metavar="URL", help="an emulator of AWS")


def deploy(args: argparse.Namespace, folder: Path, store: str | None, say: Say) -> None:
    """Carry out `shoal deploy lambda`.

    Args:
        args: Its options.
        folder: The data folder, with the deployment's key.
        store: The URL of the store, as functions reach it.
        say: Prints a line.
    """
    with explained():
        wanted = contents_of(args)
        stack = stack_of(args, wanted, folder, store)
        if args.template is not None:
            _write_template(args, stack, wanted, folder, say)
            return
        if args.dry_run:
            for line in planned(stack, wanted, args):
                say(line)
            return
        stack, path = _coded(args, stack, wanted, folder, say)
        Deploying(args, stack, say).carry_out(path)
        _note(args, stack, wanted, folder)


def contents_of(args: argparse.Namespace) -> Contents:
    """What the functions' package has."""
    return function_package.contents(args.requirements, args.package, args.architecture)


def stack_of(args: argparse.Namespace, wanted: Contents, folder: Path, store: str | None) -> Stack:
    """The deployment that the options describe."""
    if _NAME.fullmatch(args.name) is None:
        raise SettingsError(f"--name {args.name!r}: use up to 40 letters, digits and hyphens.")
    if wanted.python not in PYTHONS and not args.image:
        raise SettingsError(
            f"Lambda has no Python {wanted.python}, only {', '.join(PYTHONS)}: use a client with "
            "one of these, or deploy an image (--image)."
        )
    if store is None:
        raise SettingsError(
            "Workers on Lambda meet in a store: set store= to the URL of a Valkey or Redis server "
            "that functions can reach, or give it as --store."
        )
    if bool(args.subnets) != bool(args.security_groups):
        raise SettingsError("--subnets and --security-groups go together.")
    key = Deployment.of_user(folder, store).key.hex()
    return Stack(
        name=args.name,
        memory=tuple(memory_sizes(args.memory, "--memory")),
        python=wanted.python,
        machine=args.architecture,
        environment=wanted.environment,
        variables={STORE_VARIABLE: store, KEY_VARIABLE: key},
        secret=args.secret,
        image=args.image,
        concurrency=args.concurrency,
        pass_variables=args.pass_variables,
        subnets=_listed(args.subnets),
        security_groups=_listed(args.security_groups),
    )


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def planned(stack: Stack, wanted: Contents, args: argparse.Namespace) -> Iterator[str]:
    """The steps of a deployment, in words."""
    if stack.image:
        yield f"would use the image {stack.image}"
    else:
        yield f"would build or reuse the package {wanted.name}.zip"
        tool = lambda_image.builder() or "docker or podman, which isn't installed here"
        yield (
            "if it has more than 250 MB unzipped, would build an image with "
            f"{tool}, and push it to the ECR repository {repository_name(stack.name)}"
        )
    if stack.secret:
        yield f"would write the store's URL and the key to the secret {stack.secret}"
    yield (
        f"would create or update the role {stack.role(args.region or 'REGION')}: invoke "
        f"{stack.name}-*, write their logs{', read the secret' if stack.secret else ''}"
    )
    for name, memory_mb in stack.functions.items():
        reserved = stack.reserved().get(name)
        limit = "" if reserved is None else f", {reserved} at once"
        yield (
            f"would create or update the function {name}: {memory_mb} MB, {stack.machine}, 900 s, "
            f"no retries, events of up to {EVENT_AGE_SECONDS} s{limit}"
        )
    yield f'then set platform = "{stack.platform(args.region or "REGION")}"'


def _coded(
    args: argparse.Namespace, stack: Stack, wanted: Contents, folder: Path, say: Say
) -> tuple[Stack, Path | None]:
    """The deployment with its code: a zip, or an image if Lambda takes no zip as large as that."""
    if stack.image:
        return stack, None
    path = function_package.build(wanted, folder / "packages", say)
    nbytes = function_package.unzipped_nbytes(path)
    if nbytes <= function_package.UNZIPPED_NBYTES:
        return stack, path
    tool = lambda_image.builder()
    if tool is None:
        raise _too_large(wanted, nbytes)
    say(f"package {path.name}: {nbytes / 2**20:.0f} MB unzipped, and Lambda takes 250")
    image = lambda_image.pushed(args, wanted, tool, folder / "lambda-image", say)
    return replace(stack, image=image), None


def _package(wanted: Contents, folder: Path, say: Say) -> Path:
    """The zip, or an error with the way to an image if Lambda wouldn't take it."""
    path = function_package.build(wanted, folder / "packages", say)
    nbytes = function_package.unzipped_nbytes(path)
    if nbytes > function_package.UNZIPPED_NBYTES:
        raise _too_large(wanted, nbytes)
    return path


def _too_large(wanted: Contents, nbytes: int) -> PlatformError:
    image = Path("shoal-lambda-image").absolute()
    function_package.write_image(wanted, image, HANDLER)
    tag = f"shoal-lambda:{wanted.environment}"
    return PlatformError(
        f"The package has {nbytes / 2**20:.0f} MB unzipped, and Lambda takes 250. Name only what "
        "your tasks import (--package, --requirements), or deploy an image of up to 10 GB. Where "
        "docker or podman is installed, `shoal deploy lambda` builds and pushes it; by hand:\n"
        f"  docker build --platform {lambda_image.PLATFORMS[wanted.machine]} -t {tag} {image}\n"
        "  aws ecr create-repository --repository-name shoal-lambda\n"
        f"  docker tag {tag} ACCOUNT.dkr.ecr.REGION.amazonaws.com/{tag}\n"
        f"  docker push ACCOUNT.dkr.ecr.REGION.amazonaws.com/{tag}\n"
        f"  shoal deploy lambda --image ACCOUNT.dkr.ecr.REGION.amazonaws.com/{tag}\n"
        f"The Dockerfile is in {image}."
    )


def _write_template(
    args: argparse.Namespace, stack: Stack, wanted: Contents, folder: Path, say: Say
) -> None:
    key = f"{wanted.name}.zip"
    args.template.write_text(json.dumps(template(stack, key), indent=2) + "\n")
    say(f"wrote {args.template}")
    if not stack.image:
        path = _package(wanted, folder, say)
        say(f"upload the package:  aws s3 cp {path} s3://BUCKET/{key}")
    given = "CodeBucket=BUCKET " if not stack.image else ""
    if not stack.secret:
        given += "Store=URL DeploymentKey=$(xxd -p -c 64 " + str(folder / "deployment.key") + ")"
    say(
        f"create the stack:  aws cloudformation deploy --stack-name {stack.name} --template-file "
        f"{args.template} --capabilities CAPABILITY_IAM --parameter-overrides {given}"
    )
    _note(args, stack, wanted, folder)


def _note(args: argparse.Namespace, stack: Stack, wanted: Contents, folder: Path) -> None:
    parser = argparse.ArgumentParser()
    configure(parser)
    command = command_of("lambda", args, parser)
    note(folder, "lambda", stack.name, wanted.packages, args.requirements, command)


def undeploy(args: argparse.Namespace, folder: Path, say: Say) -> None:
    """Carry out `shoal undeploy lambda`: delete the functions, their logs, role and images.

    Args:
        args: Its options.
        folder: The data folder, with the note of the deployment.
        say: Prints a line.
    """
    with explained():
        session = session_of(args)
        functions, logs, iam = (
            client_of(session, each, args) for each in ("lambda", "logs", "iam")
        )
        names = list(deployed(functions, args.name))
        role = role_name(args.name, str(session.region_name))
        steps = {f"function {n}": partial(functions.delete_function, FunctionName=n) for n in names}
        for group in (f"/aws/lambda/{name}" for name in names):
            steps[f"log group {group}"] = partial(logs.delete_log_group, logGroupName=group)
        with contextlib.suppress(iam.exceptions.NoSuchEntityException):
            iam.get_role(RoleName=role)
            steps[f"role {role}"] = partial(delete_role, iam, role)
        steps |= _image_steps(client_of(session, "ecr", args), args.name)
        missing = logs.exceptions.ResourceNotFoundException
        for what, delete in steps.items():
            if args.dry_run:
                say(f"would delete the {what}")
                continue
            with contextlib.suppress(missing):
                delete()
            say(f"{what}: deleted")
        if not args.dry_run:
            forget(folder, "lambda", args.name)
        if not steps:
            say(f"there is no deployment {args.name!r} in {session.region_name}")


def _image_steps(ecr: Any, deployment: str) -> dict[str, partial[Any]]:
    """The deletion of a deployment's images, if it has any."""
    name = repository_name(deployment)
    try:
        (found,) = ecr.describe_repositories(repositoryNames=[name])["repositories"]
    except ecr.exceptions.RepositoryNotFoundException:
        return {}
    tags = ecr.list_tags_for_resource(resourceArn=found["repositoryArn"])["tags"]
    if {"Key": TAG, "Value": deployment} not in tags:
        return {}
    delete = partial(ecr.delete_repository, repositoryName=name, force=True)
    return {f"repository {name}": delete}
