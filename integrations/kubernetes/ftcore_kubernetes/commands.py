"""``ftctl k8s``: manifests of a job, and the job at the API server."""

import argparse
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import attrs

from ftcore.errors import FtcoreError, UsageError
from ftcore_kubernetes import adapter
from ftcore_kubernetes.api import Api
from ftcore_kubernetes.config import ApiConfig, load
from ftcore_kubernetes.job_file import TrainJob, read
from ftcore_kubernetes.manifests import objects, to_yaml
from ftcore_kubernetes.schema import custom_resource_definition
from ftcore_kubernetes.secrets import own_secrets
from ftcore_kubernetes.submit import delete, job_view, submit, table

PATIENCE_S = 60.0
"""How long ``submit`` waits for objects of a deleted job of the same name."""

_EXAMPLES = """\
examples:
  ftctl k8s submit job.yaml                                  create everything; no right on custom resources is needed
  ftctl k8s status llm
  ftctl k8s delete llm
  ftctl k8s secrets job.yaml | kubectl apply -f -            the same with kubectl: once the Secrets,
  ftctl k8s render job.yaml | kubectl apply -f -             then the rest
  ftctl k8s crd | kubectl apply -f -                         for the operator; then: kubectl apply -f job.yaml"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the commands."""
    parser.description = "Run jobs on Kubernetes."
    parser.epilog = _EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(dest="k8s", metavar="COMMAND", required=True)
    texts = {
        "render": "Print the manifests of a job file, without its Secrets.",
        "secrets": "Print new Secrets for a job file: its token, the certificates of its own etcd.",
        "submit": "Create a job from a job file.",
        "status": "Show the pods of a job.",
        "delete": "Delete a job and everything that it created.",
        "crd": "Print the custom resource definition of ElasticTrainJob.",
        "operator": "Run the operator for ElasticTrainJob resources.",
    }
    for name, text in texts.items():
        command = commands.add_parser(name, help=text, description=text)
        if name in ("render", "secrets", "submit"):
            command.add_argument("file", type=Path, metavar="FILE", help="the job file")
        if name in ("status", "delete"):
            command.add_argument("name", metavar="NAME", help="the job")
        if name != "crd":
            command.add_argument(
                "-n", "--namespace", default="", help="namespace (default: the job file's, else that of the kubeconfig)"
            )
        if name in ("submit", "status", "delete"):
            command.add_argument("--context", default="", help="context of the kubeconfig file")
        if name in ("submit", "status"):
            command.add_argument("--format", choices=("table", "json"), default="table", help="default: table")
    master = commands.add_parser("master")
    master.add_argument("job_url", metavar="NAMESPACE/NAME")


async def run(args: argparse.Namespace) -> int:
    """Do it; returns the exit code.

    Raises:
        FtcoreError: it cannot be done.
    """
    if args.k8s == "crd":
        print(to_yaml([custom_resource_definition()]), end="")
        return 0
    if args.k8s in ("render", "secrets"):
        job = read(args.file)
        namespace = args.namespace or job.namespace or _namespace()
        found = objects(job, namespace) if args.k8s == "render" else own_secrets(job, namespace)
        print(to_yaml(found), end="")
        return 0
    if args.k8s == "master":
        from ftcore_kubernetes.master import MasterPod

        return await MasterPod(adapter.parse(f"k8s:{args.job_url}"), load()).run()
    if args.k8s == "operator":
        return await _operator(args.namespace)
    given = read(args.file) if args.k8s == "submit" else None
    return await _at_the_server(args, given, load(context=args.context))


def _namespace() -> str:
    """The namespace of the kubeconfig; ``default`` without one: rendering needs no cluster."""
    try:
        return load().namespace
    except FtcoreError:
        return "default"


async def _at_the_server(args: argparse.Namespace, job: TrainJob | None, config: ApiConfig) -> int:
    namespace = args.namespace or (job.namespace if job else "") or config.namespace
    api = Api(config)
    does: dict[str, Callable[..., Awaitable[int]]] = {"submit": _submit, "status": _status, "delete": _delete}
    try:
        return await does[args.k8s](api, job or args.name, namespace, args)
    finally:
        await api.close()


async def _submit(api: Api, job: TrainJob, namespace: str, args: argparse.Namespace) -> int:
    created = await submit(api, job, namespace, patience_s=PATIENCE_S)
    if args.format == "json":
        print(json.dumps({"job": job.name, "namespace": namespace, "created": created}))
    else:
        print("\n".join(f"created {each}" for each in created) or f"job {namespace}/{job.name} is already complete")
        print(f"show it: ftctl k8s status {job.name} -n {namespace}", file=sys.stderr)
    return 0


async def _status(api: Api, name: str, namespace: str, args: argparse.Namespace) -> int:
    found = await job_view(api, name, namespace)
    if args.format == "json":
        print(json.dumps({"job": name} | attrs.asdict(found)))
        return 0
    print(table(found.pods))
    if found.declined:
        print(f"not created: {found.declined}")
    if found.excluded:
        print(f"excluded machines: {', '.join(found.excluded)}")
    return 0


async def _delete(api: Api, name: str, namespace: str, args: argparse.Namespace) -> int:
    found = await delete(api, name, namespace)
    if not found.deleted and not found.problems:
        raise UsageError(f"there is no job {namespace}/{name}")
    if found.deleted:
        print(f"deleted {namespace}/{name}")
    for problem in found.problems:
        print(f"ftctl k8s: not deleted: {problem}", file=sys.stderr)
    return 1 if found.problems else 0


async def _operator(namespace: str) -> int:
    try:
        from ftcore_kubernetes.operator import serve
    except ImportError as error:
        raise UsageError("the operator needs kopf: pip install 'ftcore-kubernetes[operator]'") from error
    await serve(namespace, load())
    return 0
