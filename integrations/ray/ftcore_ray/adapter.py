"""The platform ``ray:CONTROLLER?address=HOST:PORT&namespace=NAME`` (``ftrun --platform``), as ``launch`` writes it."""

from urllib.parse import parse_qsl, urlencode

import attrs

from ftcore import Platform, PlatformAdapter
from ftcore.errors import UsageError


@attrs.frozen
class RayUrl:
    """The parts of a URL.

    Args:
        controller: name of the controller's actor.
        address: ``host:port`` of the cluster's GCS.
        namespace: Ray's namespace of it.
    """

    controller: str
    address: str
    namespace: str

    def __str__(self) -> str:
        return f"ray:{self.controller}?{urlencode({'address': self.address, 'namespace': self.namespace}, safe=':')}"


def parse(url: str) -> RayUrl:
    """Read a URL.

    Raises:
        UsageError: it is wrong.
    """
    controller, _, query = url.partition(":")[2].partition("?")
    options = dict(parse_qsl(query))
    if not controller or set(options) != {"address", "namespace"}:
        raise UsageError(
            f"{url}: expected ray:CONTROLLER?address=HOST:PORT&namespace=NAME, as ftcore_ray.launch writes it"
        )
    return RayUrl(controller, options["address"], options["namespace"])


def _open(url: str, job: str) -> Platform:
    from ftcore_ray.platform import RayPlatform

    return RayPlatform(parse(url))


ADAPTER = PlatformAdapter(open=_open, check=parse)
