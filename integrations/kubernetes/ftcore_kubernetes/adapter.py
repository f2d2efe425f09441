"""The platform ``k8s:NAMESPACE/NAME`` (``ftrun --platform``); NAME is the job's config map."""

import re
from typing import Final

import attrs

from ftcore import Platform, PlatformAdapter
from ftcore.errors import UsageError

_NAME: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"


@attrs.frozen
class KubernetesUrl:
    """The parts of a URL.

    Args:
        namespace: of the job.
        name: of its config map.
    """

    namespace: str
    name: str


def parse(url: str) -> KubernetesUrl:
    """Read a URL.

    Raises:
        UsageError: it is wrong.
    """
    namespace, slash, name = url.partition(":")[2].partition("/")
    if not (slash and re.fullmatch(_NAME, namespace) and re.fullmatch(_NAME, name)):
        raise UsageError(f"{url}: expected k8s:NAMESPACE/NAME with the job's config map, as k8s:research/llm")
    return KubernetesUrl(namespace, name)


def _open(url: str, job: str) -> Platform:
    from ftcore_kubernetes.config import load
    from ftcore_kubernetes.platform import KubernetesPlatform

    return KubernetesPlatform(parse(url), load())


ADAPTER = PlatformAdapter(open=_open, check=parse)
