"""Packages that are too large for a zip: an image is built and pushed, for real where docker is."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import tarfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from docker_here import docker_daemon
from test_deploy_lambda import aws, deploy, endpoint, environment

from observing import eventually
from shoal.engines import function_package
from shoal.engines.deploy_containers import _libraries
from shoal.engines.function_package import contents, write_image
from shoal.engines.lambda_image import Repository, build_and_push
from shoal.engines.lambda_stack import HANDLER
from store_servers import free_port

__all__ = ["aws", "endpoint", "environment"]
pytestmark = pytest.mark.real

_KIND = "application/vnd.docker.distribution.manifest.v2+json"
MANIFEST = json.dumps(
    {"schemaVersion": 2, "mediaType": _KIND, "config": {"size": 1, "digest": "sha256:0"},
     "layers": []}
)  # fmt: skip


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A docker that notes how it is called, and what it reads."""
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    calls = tmp_path / "calls"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {calls}\n[ "$1" = login ] && cat >> {calls}\nexit 0\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setattr(function_package, "UNZIPPED_NBYTES", 1000)
    return calls


def test_what_is_too_large_for_a_zip_becomes_an_image_in_ecr(
    aws,
    endpoint: str,
    programs: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert deploy(endpoint, "--memory", "512") == 0
    ecr = aws("ecr")
    (repository,) = ecr.describe_repositories()["repositories"]
    uri, tag = repository["repositoryUri"], Path("calls").read_text().split(":")[1].split()[0]
    assert repository["repositoryName"] == "shoal-lambda"
    build, login, *rest = programs.read_text().splitlines()
    assert build.startswith(f"build --platform=linux/amd64 --tag={uri}:{tag} ")
    registry = uri.partition("/")[0]
    assert login == f"login --username=AWS --password-stdin {registry}"
    assert rest[0].endswith(f"push {uri}:{tag}")
    assert rest[-1] == f"logout {registry}"
    function = aws("lambda").get_function(FunctionName="shoal-512")
    assert function["Code"]["ImageUri"] == f"{uri}:{tag}"

    ecr.put_image(repositoryName="shoal-lambda", imageManifest=MANIFEST, imageTag=tag)
    programs.unlink()
    assert deploy(endpoint, "--memory", "512") == 0
    assert not programs.exists()
    assert "pushed before" in capsys.readouterr().out

    assert deploy(endpoint, command="undeploy") == 0
    assert ecr.describe_repositories()["repositories"] == []


def test_a_repository_of_somebody_else_is_left_alone(aws, endpoint: str) -> None:
    aws("ecr").create_repository(repositoryName="shoal-lambda")
    assert deploy(endpoint, command="undeploy") == 0
    assert len(aws("ecr").describe_repositories()["repositories"]) == 1


def test_a_dry_run_tells_about_the_image(
    endpoint: str,
    programs: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert deploy(endpoint, "--dry-run") == 0
    assert "with docker, and push it to the ECR repository shoal-lambda" in capsys.readouterr().out
    assert not programs.exists()


@contextmanager
def registry() -> Iterator[int]:
    """A registry of images, without data of its own afterwards."""
    if not shutil.which("docker-registry"):
        pytest.skip("no registry: needs the Debian package docker-registry (`make engines`)")
    port = free_port()
    configuration = Path("registry.yml")
    configuration.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {Path('images').absolute()}}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}'}}\n"
    )
    with open("registry.log", "wb") as log:
        server = subprocess.Popen(
            ["docker-registry", "serve", str(configuration)], stdout=log, stderr=log
        )
    try:
        assert eventually(lambda: tags(port) is not None), Path("registry.log").read_text()
        yield port
    finally:
        server.terminate()
        server.wait()


def tags(port: int, path: str = "_catalog") -> object:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/{path}", timeout=5) as answer:
            return json.load(answer)
    except OSError:
        return None


def import_base(python: str) -> None:
    """Stand in for Amazon's image, which can't be pulled here: a shell, and a pip that is idle."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as image:
        image.dereference = True
        for path in {Path("/bin/sh"), *_libraries([Path("/bin/sh")])}:
            image.add(path)
        pip = tarfile.TarInfo("bin/pip")
        pip.mode, text = 0o755, b"#!/bin/sh\n"
        pip.size = len(text)
        image.addfile(pip, io.BytesIO(text))
    name = f"public.ecr.aws/lambda/python:{python}"
    changes = ["--change", "ENV LAMBDA_TASK_ROOT=/var/task", "--change", "ENV PATH=/bin"]
    subprocess.run(["docker", "import", *changes, "-", name], input=made.getvalue(), check=True)


@pytest.mark.engine
def test_an_image_is_built_and_pushed(tmp_path: Path) -> None:
    """Docker and the registry are real."""
    wanted = contents(Path("requirements.txt"), [], "x86_64")
    folder, said = tmp_path / "image", list[str]()
    write_image(wanted, folder, HANDLER)
    with docker_daemon(), registry() as port:
        import_base(wanted.python)
        where = Repository(f"127.0.0.1:{port}/shoal-lambda:{wanted.name}", "AWS", "secret")
        build_and_push("docker", where, wanted, folder, said.append)
        assert tags(port, "shoal-lambda/tags/list") == {
            "name": "shoal-lambda", "tags": [wanted.name]}  # fmt: skip
        shown = subprocess.run(
            ["docker", "inspect", "--format", "{{.Config.Env}} {{.Config.Cmd}}", where.uri],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        assert f"SHOAL_ENVIRONMENT={wanted.environment}" in shown
        assert HANDLER in shown
    assert [line.rpartition(": ")[2] for line in said] == ["building with docker", "pushing"]
