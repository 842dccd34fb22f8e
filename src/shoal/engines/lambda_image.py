"""Functions whose packages are too large for a zip: build an image, and push it to ECR.

1. Docker or Podman builds it, from Amazon's base image and the package index. The image is named
   after its content, and what was pushed before is used again.
2. The repository belongs to the deployment, and is deleted with it.
3. The login is the one that ECR gives for the credentials of AWS. It ends with the push.
"""

from __future__ import annotations

import argparse
import base64
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.engines.commands import output_of
from shoal.engines.function_package import Contents, Say, write_image
from shoal.engines.lambda_management import client_of, session_of
from shoal.engines.lambda_stack import HANDLER, TAG, repository_name

_TOOLS = ("docker", "podman")
_BUILD_SECONDS, _PUSH_SECONDS = 3600.0, 3600.0
_PLAIN = {"BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
"""With attestations, an image is an index of several, which Lambda doesn't take."""
PLATFORMS = {"x86_64": "linux/amd64", "arm64": "linux/arm64"}
"""Lambda's processors, as Docker names them."""


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository of images, and how to log in."""

    uri: str
    user: str
    password: str = field(repr=False)

    @property
    def registry(self) -> str:
        """Its server."""
        return self.uri.partition("/")[0]


def builder() -> str | None:
    """The program that builds images here; None: there is none."""
    return next(filter(shutil.which, _TOOLS), None)


def pushed(args: argparse.Namespace, wanted: Contents, tool: str, folder: Path, say: Say) -> str:
    """The URI of an image in ECR with these contents, which is built and pushed if need be.

    Args:
        args: The options of `shoal deploy lambda`.
        wanted: The contents.
        tool: What builds images.
        folder: Where to write what it builds from.
        say: Prints a line.
    """
    ecr = client_of(session_of(args), "ecr", args)
    name = repository_name(args.name)
    uri = f"{_repository(ecr, name, args.name)}:{wanted.name}"
    if _has(ecr, name, wanted.name):
        say(f"image {uri}: pushed before")
        return uri
    write_image(wanted, folder, HANDLER)
    build_and_push(tool, _login(ecr, uri), wanted, folder, say)
    return uri


def build_and_push(tool: str, where: Repository, wanted: Contents, folder: Path, say: Say) -> None:
    """Build an image from a folder and push it.

    Args:
        tool: `docker` or `podman`.
        where: The image's URI, and its registry's login.
        wanted: The contents, for their processor.
        folder: The folder with the Dockerfile.
        say: Prints a line.
    """
    say(f"image {where.uri}: building with {tool}")
    platform = PLATFORMS[wanted.machine]
    built = [tool, "build", f"--platform={platform}", f"--tag={where.uri}", str(folder)]
    output_of(built, seconds=_BUILD_SECONDS, variables=_PLAIN)
    say(f"image {where.uri}: pushing")
    login = [tool, "login", f"--username={where.user}", "--password-stdin", where.registry]
    output_of(login, stdin=where.password)
    try:
        output_of([tool, "push", where.uri], seconds=_PUSH_SECONDS)
    finally:
        output_of([tool, "logout", where.registry])


def _repository(ecr: Any, name: str, deployment: str) -> str:
    """The URI of a repository, which exists then."""
    try:
        found = ecr.describe_repositories(repositoryNames=[name])["repositories"][0]
    except ecr.exceptions.RepositoryNotFoundException:
        tags = [{"Key": TAG, "Value": deployment}]
        found = ecr.create_repository(repositoryName=name, tags=tags)["repository"]
    return str(found["repositoryUri"])


def _has(ecr: Any, repository: str, tag: str) -> bool:
    try:
        ecr.describe_images(repositoryName=repository, imageIds=[{"imageTag": tag}])
    except ecr.exceptions.ImageNotFoundException:
        return False
    return True


def _login(ecr: Any, uri: str) -> Repository:
    given = ecr.get_authorization_token()["authorizationData"][0]["authorizationToken"]
    user, _, password = base64.b64decode(given).decode().partition(":")
    return Repository(uri, user, password)
