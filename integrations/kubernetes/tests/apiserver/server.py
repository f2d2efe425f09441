"""The server as a whole, for use in tests: ``async with ApiServer() as server``."""

import asyncio
import base64
import ssl
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import trustme
import yaml

from .access import Access
from .cluster import Cluster
from .container import FakeRuntime, Runtime
from .control import Control
from .controllers import Controllers, first_objects
from .faults import Faults
from .handlers import Handlers
from .jobs import Jobs
from .kubelet import Kubelets
from .logs import Logs
from .objects import Objects
from .pods import TOLERATED_S
from .processes import ProcessRuntime
from .quota import Quotas
from .resources import Catalog, Resource
from .scheduler import Scheduler
from .status import Json
from .store import Store, Stored
from .web import Frontend

Mode = Literal["none", "fake", "processes"]


class ApiServer:
    """A Kubernetes API server with nodes, in this process.

    ``mode``: ``none``: only the API; ``fake``: pods are scheduled and change state, nothing runs; ``processes``:
    containers are local processes, with ``images`` and ``environment`` as in ``ProcessRuntime``; their files are below
    ``root``, or in a temporary directory that is removed at the end.
    ``nodes``: how many, named node-0 and so on, or their names; each has ``capacity`` besides the usual.
    ``history``: changes of one resource that a watch can go back; ``bookmark_s``: time between bookmarks, in seconds.
    ``auth``: ask for tokens and heed roles. ``tls``: serve HTTPS. ``tolerated_s``: how long pods tolerate a lost node.
    ``start_s``, ``backoff_s``, ``node_grace_s``: see ``Kubelets`` and ``Cluster``. ``seed``: of uids, generated
    names and faults that are drawn by chance.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        mode: Mode = "fake",
        nodes: int | Sequence[str] = 0,
        capacity: Mapping[str, str] | None = None,
        namespaces: Sequence[str] = (),
        history: int = 10_000,
        bookmark_s: float = 60.0,
        auth: bool = False,
        tls: bool = False,
        tolerated_s: int = TOLERATED_S,
        start_s: float = 0.0,
        backoff_s: float = 10.0,
        node_grace_s: float = 0.0,
        root: Path | None = None,
        images: Mapping[str, Sequence[str]] | None = None,
        environment: Mapping[str, str] | None = None,
        seed: int | None = None,
    ) -> None:
        self.host, self.port, self.mode = host, port, mode
        self._nodes = [f"node-{each}" for each in range(nodes)] if isinstance(nodes, int) else list(nodes)
        self._capacity, self._namespaces = dict(capacity or {}), tuple(namespaces)
        self.store, self.catalog = Store(history), Catalog()
        self.objects = Objects(self.store, self.catalog, seed, tolerated_s)
        self.handlers = Handlers(self.objects)
        self.access, self.faults = Access(self.objects, auth), Faults(seed)
        self.web = Frontend(self.handlers, self.access, self.faults, bookmark_s)
        self._times = (start_s, backoff_s, node_grace_s)
        self._tls = tls
        self._root, self._images, self._environment = root, images, environment
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._later: set[asyncio.Task[None]] = set()
        self.ca_pem = b""
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to serve."""
        if self._tls:
            context = self._certificate()
        self.controllers = Controllers(self.objects)
        Quotas(self.objects)
        start_s, backoff_s, node_grace_s = self._times
        self.kubelets = Kubelets(self.objects, self._runtime(), start_s, backoff_s)
        self.kubelets.active = self.mode != "none"
        self.cluster = Cluster(self.objects, self.kubelets, node_grace_s)
        loops = [self.controllers.run()]
        self.jobs = Jobs(self.objects, backoff_s) if self.mode != "none" else None
        if self.mode != "none":
            loops.append(Scheduler(self.handlers).run())
        first_objects(self.objects, self._namespaces)
        for name in self._nodes:
            self.cluster.add_node(name, self._capacity)
        self._tasks = [asyncio.create_task(each) for each in loops]
        self.web.control = Control(self)
        await self.web.open(self.host, self.port, context if self._tls else None)
        self.port = self.web.port

    def _runtime(self) -> Runtime:
        if self.mode != "processes":
            self.web.logs = Logs(lambda *_: None, lambda *_: False)
            return FakeRuntime()
        if self._root is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="k8s-", dir="/tmp", ignore_cleanup_errors=True)
            self._root = Path(self._temporary.name)
        runtime = ProcessRuntime(self.objects, self._root, self._pod_config, self._images, self._environment)
        runtime.ca_pem, self.runtime = self.ca_pem, runtime
        self.web.logs = Logs(runtime.log, self._runs)
        return runtime

    def _pod_config(self, pod: Json) -> Json:
        namespace = pod["metadata"]["namespace"]
        token = self.token(namespace, pod["spec"].get("serviceAccountName", "default"))
        return self.config(token, namespace)

    def _runs(self, uid: str, container: str) -> bool:
        run = self.kubelets.runs.get(uid)
        return run is not None and run.container(container).exit is None

    def _certificate(self) -> ssl.SSLContext:
        authority = trustme.CA()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(self.host, "localhost", "kubernetes.default.svc").configure_cert(context)
        self.ca_pem = authority.cert_pem.bytes()
        return context

    async def stop(self) -> None:
        """End all pods, watches and connections."""
        self.cluster.close()
        if self.jobs is not None:
            self.jobs.close()
        await self.kubelets.close()
        await self.web.close()
        for task in (*self._tasks, *self._later):
            task.cancel()
        for found in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(found, Exception):
                raise found
        if self._temporary is not None:
            self._temporary.cleanup()
        if self.web.problems:
            raise ExceptionGroup("the test server failed to answer requests", self.web.problems)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """Where it serves."""
        return f"{'https' if self._tls else 'http'}://{self.host}:{self.port}"

    def config(self, token: str = "", namespace: str = "default") -> Json:
        """A kubeconfig, for the administrator by default."""
        cluster: Json = {"server": self.url}
        if self.ca_pem:
            cluster["certificate-authority-data"] = base64.b64encode(self.ca_pem).decode()
        return {
            "apiVersion": "v1", "kind": "Config", "current-context": "test", "preferences": {},
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": token or self.access.admin_token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": namespace}}],
        }  # fmt: skip

    def kubeconfig(self, path: Path | None = None, token: str = "", namespace: str = "default") -> Path:
        """Write a kubeconfig file; without ``path`` into a new temporary file."""
        if path is None:
            path = Path(tempfile.mkstemp(prefix="kubeconfig-")[1])
        path.write_text(yaml.safe_dump(self.config(token, namespace)))
        return path

    def token(self, namespace: str, account: str) -> str:
        """A token of a service account."""
        return self.access.token(f"system:serviceaccount:{namespace}:{account}")

    def stale(self, resource: str, only_cached: bool = False, times: int | None = None) -> int:
        """Lists of a resource stay as they are now; returns the fault's id, for ``faults.remove``.

        ``only_cached``: only those with ``resourceVersion=0``, which a real server may answer from an old cache.
        """
        return self.faults.add(
            resources=[resource], stale_revision=self.store.revision, only_cached=only_cached, times=times
        )

    def refuse(self, seconds: float) -> None:
        """Cut all connections and refuse new ones for some seconds, beginning when this call has been answered."""

        async def away() -> None:
            await asyncio.sleep(0.01)
            await self.web.refuse()
            await asyncio.sleep(seconds)
            await self.web.accept()

        task = asyncio.get_running_loop().create_task(away())
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    @property
    def calls(self) -> Counter[tuple[str, str]]:
        """Requests so far, by verb and resource."""
        return self.web.calls

    def resource(self, name: str) -> Resource:
        """A resource by its qualified name, such as ``pods`` or ``leases.coordination.k8s.io``."""
        plural, _, group = name.partition(".")
        return self.catalog.get(plural, group)

    def get(self, name: str, namespace: str, object_name: str) -> Json | None:
        """An object, without a request."""
        found = self.store.get(self.resource(name), namespace, object_name)
        return None if found is None else found.copy()

    async def wait(self, name: str, namespace: str, object_name: str, until: Any, timeout_s: float = 60.0) -> Json:
        """Wait until ``until(object)`` is true, where object is None if there is none; returns the object, or {}."""
        resource = self.resource(name)
        watch = self.store.watch(resource, self.store.revision, namespace)
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    stored: Stored | None = self.store.get(resource, namespace, object_name)
                    if until(None if stored is None else stored.object):
                        return {} if stored is None else stored.copy()
                    watch.take()
                    await watch.wait(None)
        finally:
            self.store.unwatch(resource, watch)
