"""Implement `shoal deploy http DIR`: write what Cloud Run, Knative, OpenFaaS and Fn need.

1. Nothing is built or uploaded: the command writes files and prints what to run next.
2. No file has a secret. The store's URL and the deployment's key go from the client to the
   platform's secrets, by way of a pipe.
3. Files that Shoal didn't write are left alone.
"""

from __future__ import annotations

import argparse
import math
import platform
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

from shoal.engines.environment import FUNCTION_VARIABLE, command_of, note
from shoal.engines.requirements import local_packages, requirements_of
from shoal.errors import UsageError
from shoal.platform.environment import ENVIRONMENT_VARIABLE, environment_name
from shoal.platform.events import Deployment
from shoal.types import MEMORY_MB, Resources

MARK = "# Written by `shoal deploy http`, which overwrites it."
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
_OWN_MB = 256
"""What the function's server needs of an instance's memory."""
_CPUS = (1, 2, 4, 6, 8)
"""The CPUs that an instance of Cloud Run can have."""
_FN_SECONDS = 300
"""The longest time that Fn lets a function run."""


@dataclass(frozen=True, slots=True)
class FunctionSpec:
    """What is to be deployed."""

    name: str
    image: str
    slots: int
    memory_mb: int
    seconds: int
    instances: int
    environment: str
    """The name of its packages."""
    url: str = ""
    """Its own URL; empty: it can't call itself."""

    @property
    def instance_mb(self) -> int:
        """The memory of an instance, in a multiple that Fn accepts."""
        return 64 * math.ceil((self.slots * self.memory_mb + _OWN_MB) / 64)

    @property
    def cpus(self) -> int:
        """The CPUs of an instance."""
        needed = self.slots * Resources(self.memory_mb).cpu_share
        return next((count for count in _CPUS if count >= needed), _CPUS[-1])

    @property
    def platform(self) -> str:
        """The platform that clients set."""
        url = self.url or "https://THE-FUNCTIONS-URL/"
        nests = "&nests=1" if self.url else ""
        return (
            f"function+{url}?capacity={self.slots * self.instances}&memory_mb={self.memory_mb}"
            f"&seconds={self.seconds}{nests}"
        )

    @property
    def variables(self) -> dict[str, str]:
        """What it finds in its environment, besides secrets."""
        found = {"SHOAL_SLOTS": str(self.slots)}
        return found | {"SHOAL_PLATFORM": self.platform} if self.url else found


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `shoal deploy http`."""
    add = parser.add_argument
    add("folder", metavar="DIR", type=Path, help="the folder to write to")
    add("--name", default="shoal", help="name of the function (default: %(default)s)")
    add("--image", help="name of its image, with the registry (default: the function's name)")
    add("--url", help="the function's URL, once it is known: with it, workers start workers")
    add("--slots", type=int, default=1, help="workers in an instance (default: %(default)s)")
    add("--memory-mb", type=int, default=MEMORY_MB, help="memory of a worker in MB "
        "(default: %(default)s)")  # fmt: skip
    add("--seconds", type=int, default=900, help="how long a call may take (default: %(default)s)")
    add("--instances", type=int, default=100, help="maximum number of instances "
        "(default: %(default)s)")  # fmt: skip
    add("--requirements", type=Path, metavar="FILE",
        help="packages for tasks: a requirements or lock file (default: what is "
        "installed here)")  # fmt: skip
    add("--show-key", action="store_true",
        help="only print the deployment's key, to be piped into a secret")  # fmt: skip
    add("--show-store", action="store_true",
        help="only print the store's URL, with certificates, for another secret")  # fmt: skip


def deploy(
    args: argparse.Namespace, folder: Path, store: str | None, say: Callable[[str], None]
) -> None:
    """Write the files, and say what to run next."""
    deployment = Deployment.of_user(folder, store or "")
    if args.show_key:
        say(deployment.key.hex())
        return
    if args.show_store:
        if store is None:
            raise UsageError("Set store= to the URL at which the function reaches the store.")
        say(store)
        return
    packages = requirements_of(args.requirements, ())
    function = _function(args, environment_name(packages.lines))
    lines = list(packages.lines)
    if not bring_shoal(args.folder):
        lines.insert(0, f"shoal=={metadata.version('shoal')}")
    for name, text in files(function, lines).items():
        write(args.folder / name, text)
    for name in sorted(local_packages() - {"shoal"}) if packages.whole else ():
        say(f"not included, because it was installed from this machine: {name}")
    parser = argparse.ArgumentParser()
    configure(parser)
    command = command_of("http", args, parser, str(args.folder.absolute()))
    note(folder, "http", function.name, packages, args.requirements, command)
    say(f"{args.folder} has the function {function.name}, environment {function.environment}")
    for line in next_steps(function, args.folder):
        say(line)


def _function(args: argparse.Namespace, environment: str) -> FunctionSpec:
    if not _NAME.fullmatch(args.name):
        raise UsageError(
            f"--name {args.name}: use up to 40 lower-case letters, digits and hyphens, beginning "
            "with a letter."
        )
    for option in ("slots", "memory_mb", "seconds", "instances"):
        if getattr(args, option) < 1:
            raise UsageError(f"--{option.replace('_', '-')} must be at least 1.")
    url = args.url or ""
    if url and (urlsplit(url).scheme not in ("http", "https") or urlsplit(url).query):
        raise UsageError(f"--url {url} must be an http:// or https:// URL without a query.")
    return FunctionSpec(
        name=args.name,
        image=args.image or args.name,
        slots=args.slots,
        memory_mb=args.memory_mb,
        seconds=args.seconds,
        instances=args.instances,
        environment=environment,
        url=url,
    )


def bring_shoal(folder: Path) -> bool:
    """Copy Shoal into the folder if it was installed from a folder; whether it was."""
    distribution = metadata.distribution("shoal")
    if distribution.read_text("direct_url.json") is None:
        return False
    package = Path(__file__).parent.parent
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(package, folder / "shoal", ignore=ignored, dirs_exist_ok=True)
    facts = folder / f"shoal-{distribution.version}.dist-info"
    facts.mkdir(exist_ok=True)
    for name in ("METADATA", "entry_points.txt"):
        text = distribution.read_text(name)
        if text is not None:
            (facts / name).write_text(text, encoding="utf-8")
    return True


def write(path: Path, text: str) -> None:
    """Write a file, unless there is one that Shoal didn't write."""
    if path.exists() and MARK not in path.read_text(encoding="utf-8", errors="replace"):
        raise UsageError(f"{path} wasn't written by this command. Choose another folder.")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{MARK}\n{text}", encoding="utf-8")


def files(function: FunctionSpec, lines: list[str]) -> dict[str, str]:
    """The files of a function, by name."""
    return {
        "requirements.txt": "".join(f"{line}\n" for line in lines),
        "main.py": _MAIN,
        "Dockerfile": _dockerfile(function),
        "service.yaml": _service(function),
        "stack.yml": _stack(function),
        "func.yaml": _func(function),
    }


_MAIN = '''"""The entry points of Shoal's function."""

from shoal.engines.entry import asgi, handle, wsgi

__all__ = ["asgi", "handle", "wsgi"]
'''


def _dockerfile(function: FunctionSpec) -> str:
    minor = ".".join(platform.python_version_tuple()[:2])
    return f"""FROM python:{minor}-slim
RUN useradd --create-home function
WORKDIR /function
COPY requirements.txt .
RUN pip install --no-cache-dir --requirement requirements.txt
COPY . .
ENV PYTHONPATH=/function
ENV {FUNCTION_VARIABLE}={function.name} {ENVIRONMENT_VARIABLE}={function.environment}
USER function
EXPOSE 8080
CMD ["python", "-m", "shoal.engines.serve"]
"""


def _service(function: FunctionSpec) -> str:
    variables = "".join(
        f'            - name: {name}\n              value: "{value}"\n'
        for name, value in function.variables.items()
    )
    return f"""apiVersion: serving.knative.dev/v1
kind: Service
metadata:
  name: {function.name}
spec:
  template:
    metadata:
      annotations:
        autoscaling.knative.dev/maxScale: "{function.instances}"
    spec:
      containerConcurrency: {function.slots}
      timeoutSeconds: {function.seconds}
      containers:
        - image: {function.image}
          ports:
            - containerPort: 8080
          resources:
            limits:
              cpu: "{function.cpus}"
              memory: {function.instance_mb}Mi
          env:
{variables}            - name: SHOAL_STORE
              valueFrom:
                secretKeyRef:
                  name: shoal-store
                  key: latest
            - name: SHOAL_DEPLOYMENT_KEY
              valueFrom:
                secretKeyRef:
                  name: shoal-deployment-key
                  key: latest
"""


def _stack(function: FunctionSpec) -> str:
    variables = "".join(f'      {n}: "{v}"\n' for n, v in function.variables.items())
    return f"""version: 1.0
provider:
  name: openfaas
  gateway: http://127.0.0.1:8080
functions:
  {function.name}:
    lang: dockerfile
    handler: ./
    image: {function.image}
    secrets:
      - shoal-store
      - shoal-deployment-key
    environment:
      SHOAL_SECRETS: /var/openfaas/secrets
{variables}    labels:
      com.openfaas.scale.max: "{function.instances}"
    limits:
      memory: {function.instance_mb}Mi
"""


def _func(function: FunctionSpec) -> str:
    variables = "".join(f'  {n}: "{v}"\n' for n, v in function.variables.items())
    return f"""schema_version: 20180708
name: {function.name}
version: 0.0.1
runtime: docker
memory: {function.instance_mb}
timeout: {min(function.seconds, _FN_SECONDS)}
config:
{variables}expects:
  config:
    - name: SHOAL_STORE
      required: true
    - name: SHOAL_DEPLOYMENT_KEY
      required: true
triggers:
  - name: {function.name}
    type: http
    source: /{function.name}
"""


def next_steps(function: FunctionSpec, folder: Path) -> list[str]:
    """What to run next on each platform."""
    key = f"shoal deploy http {folder} --show-key"
    store = f"shoal deploy http {folder} --show-store"
    name = function.name
    return [
        "",
        "The function must reach the store at the URL that you have set. On Cloud Run:",
        f"  {store} | gcloud secrets create shoal-store --data-file=-",
        f"  {key} | gcloud secrets create shoal-deployment-key --data-file=-",
        f"  gcloud builds submit --tag {function.image} {folder}",
        f"  gcloud run services replace {folder}/service.yaml",
        "on Knative:",
        f"  {store} | kubectl create secret generic shoal-store --from-file=latest=/dev/stdin",
        f"  {key} | kubectl create secret generic shoal-deployment-key "
        "--from-file=latest=/dev/stdin",
        f"  docker build --tag {function.image} {folder} && docker push {function.image}",
        f"  kubectl apply --filename {folder}/service.yaml",
        "on OpenFaaS:",
        f"  {store} | faas-cli secret create shoal-store",
        f"  {key} | faas-cli secret create shoal-deployment-key",
        f"  cd {folder} && faas-cli up --yaml stack.yml",
        "on Fn:",
        f"  cd {folder} && fn deploy --create-app --app {name}",
        f'  fn config function {name} {name} SHOAL_STORE "$({store})"',
        f'  fn config function {name} {name} SHOAL_DEPLOYMENT_KEY "$({key})"',
        "",
        f"Clients set SHOAL_PLATFORM='{function.platform}'; `shoal doctor` checks it.",
    ]
