"""Pods whose containers are real processes: output, exit codes, volumes, restarts, deletion, lost nodes."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from apiserver import ApiServer, Client
from apiserver.processes import marked

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
Body = Callable[[ApiServer], Awaitable[None]]

ASK = """
import os, ssl, urllib.error, urllib.request, yaml
ACCOUNT = os.environ["ACCOUNT"]
config = yaml.safe_load(open(os.environ["KUBECONFIG"]))
token = config["users"][0]["user"]["token"]
assert open(ACCOUNT + "/token").read() == token and open(ACCOUNT + "/namespace").read() == "ft"
url = "https://%s:%s/api/v1/" % (os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"])
trust = ssl.create_default_context(cafile=ACCOUNT + "/ca.crt")
for path in ("namespaces/ft/pods", "nodes"):
    asked = urllib.request.Request(url + path, headers={"Authorization": "Bearer " + token})
    try:
        print(urllib.request.urlopen(asked, context=trust).status)
    except urllib.error.HTTPError as problem:
        print(problem.code)
"""


def run(body: Body, **options: Any) -> None:
    async def inside() -> None:
        options.setdefault("nodes", 2)
        async with ApiServer(mode="processes", namespaces=["ft"], backoff_s=0.0, **options) as server:
            await body(server)

    asyncio.run(inside())


def make(server: ApiServer, name: str, code: str, policy: str = "Never", **spec: Any) -> None:
    container = {
        "name": "main",
        "image": "python",
        "command": [sys.executable, "-c", code],
        **spec.pop("container", {}),
    }
    body = {"metadata": {"name": name}, "spec": {"restartPolicy": policy, "containers": [container], **spec}}
    server.objects.create(server.resource("pods"), "ft", body)


def phase(*wanted: str) -> Callable[[Any], bool]:
    return lambda pod: pod is not None and pod["status"]["phase"] in wanted


def output(server: ApiServer, pod: Any, previous: bool = False) -> str:
    path = server.runtime.log(pod["metadata"]["uid"], pod["spec"]["containers"][0]["name"], previous)
    assert path is not None
    return path.read_text()


def ended(pod: Any) -> dict[str, Any]:
    found: dict[str, Any] = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    return found


@pytest.mark.parametrize(("code", "phase_", "number", "reason"), [
    ("print('done')", "Succeeded", 0, "Completed"),
    ("import sys; sys.exit(3)", "Failed", 3, "Error"),
    ("import os; os.kill(os.getpid(), 9)", "Failed", 137, "Error"),
])  # fmt: skip
def test_exit_codes(code: str, phase_: str, number: int, reason: str) -> None:
    async def body(server: ApiServer) -> None:
        make(server, "p", code)
        pod = await server.wait("pods", "ft", "p", phase("Succeeded", "Failed"))
        assert (pod["status"]["phase"], ended(pod)["exitCode"], ended(pod)["reason"]) == (phase_, number, reason)

    run(body)


def test_environment_volumes_and_address() -> None:
    code = (
        "import os, socket; e = os.environ; s = socket.create_server((e['IP'], 0));"
        "print(e['NAME'], e['WHERE'], e['A'], e['SECRET'], e['GPUS'], open(e['FILE']).read(), open('/etc/cm/b').read())"
    )

    async def body(server: ApiServer) -> None:
        create, resource = server.objects.create, server.resource
        create(resource("configmaps"), "ft", {"metadata": {"name": "cm"}, "data": {"a": "1", "b": "two"}})
        create(resource("secrets"), "ft", {"metadata": {"name": "s"}, "stringData": {"key": "hidden"}})
        env = [
            {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "WHERE", "value": "$(NAME)-on-$$(X)"},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "a"}}},
            {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "key"}}},
            {"name": "GPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
            {"name": "FILE", "value": "/etc/cm/a"},
        ]
        volumes = [{"name": "files", "configMap": {"name": "cm"}}, {"name": "scratch", "emptyDir": {}}]
        mounts = [{"name": "files", "mountPath": "/etc/cm"}, {"name": "scratch", "mountPath": "/scratch"}]
        more = {"env": env, "volumeMounts": mounts, "resources": {"limits": {"cpu": "2"}}}
        make(server, "p", code, container=more, volumes=volumes)
        pod = await server.wait("pods", "ft", "p", phase("Succeeded", "Failed"))
        assert output(server, pod).split() == ["p", "p-on-$(X)", "1", "hidden", "2", "1", "two"]
        assert pod["status"]["podIP"].startswith("127.")

    run(body)


def test_pod_waits_for_its_config_map() -> None:
    async def body(server: ApiServer) -> None:
        mounts = {"volumeMounts": [{"name": "f", "mountPath": "/f"}]}
        make(
            server,
            "p",
            "print(open('/f/a').read())",
            container=mounts,
            volumes=[{"name": "f", "configMap": {"name": "c"}}],
        )
        await server.wait("pods", "ft", "p", lambda pod: bool(pod["status"].get("containerStatuses")))
        server.objects.create(server.resource("configmaps"), "ft", {"metadata": {"name": "c"}, "data": {"a": "late"}})
        pod = await server.wait("pods", "ft", "p", phase("Succeeded", "Failed"))
        assert output(server, pod) == "late\n"

    run(body)


def test_failed_container_is_started_again() -> None:
    code = "import pathlib, sys; p = pathlib.Path('/data/n'); n = len(p.read_text()) if p.exists() else 0;" \
           "p.write_text('x' * (n + 1)); print(n); sys.exit(0 if n == 2 else 7)"  # fmt: skip

    async def body(server: ApiServer) -> None:
        mounts = {"volumeMounts": [{"name": "d", "mountPath": "/data"}]}
        make(server, "p", code, "OnFailure", container=mounts, volumes=[{"name": "d", "emptyDir": {}}])
        pod = await server.wait("pods", "ft", "p", phase("Succeeded", "Failed"))
        status = pod["status"]["containerStatuses"][0]
        assert (pod["status"]["phase"], status["restartCount"]) == ("Succeeded", 2)
        assert status["lastState"]["terminated"]["exitCode"] == 7
        assert (output(server, pod), output(server, pod, previous=True)) == ("2\n", "1\n")

    run(body)


@pytest.mark.parametrize(("code", "first_line"), [(SLEEP, "up\n"), (DEAF, "deaf\n")])
def test_delete_ends_the_process_within_its_grace(code: str, first_line: str) -> None:
    async def body(server: ApiServer) -> None:
        make(server, "p", code, terminationGracePeriodSeconds=1)
        pod = await server.wait("pods", "ft", "p", phase("Running"))
        while output(server, pod) != first_line:
            await asyncio.sleep(0.01)
        mark = server.runtime.mark(pod, "main")
        assert marked(mark)
        server.objects.delete(server.resource("pods"), "ft", "p")
        assert server.get("pods", "ft", "p")["metadata"]["deletionGracePeriodSeconds"] == 1
        await server.wait("pods", "ft", "p", lambda now: now is None)
        assert not marked(mark)

    run(body)


def test_lost_node_ends_its_processes_and_its_pods_stay_until_it_is_back() -> None:
    async def body(server: ApiServer) -> None:
        make(server, "p", SLEEP)
        pod = await server.wait("pods", "ft", "p", phase("Running"))
        node = pod["spec"]["nodeName"]
        server.cluster.lose_node(node)
        await server.wait("pods", "ft", "p", lambda now: "deletionTimestamp" in now["metadata"])
        while marked(server.runtime.mark(pod, "main")):
            await asyncio.sleep(0.01)
        assert server.get("nodes", "", node)["spec"]["taints"][0]["key"] == "node.kubernetes.io/unreachable"
        assert server.get("pods", "ft", "p")["status"]["phase"] == "Running"
        server.cluster.regain_node(node)
        await server.wait("pods", "ft", "p", lambda now: now is None)

    run(body, tolerated_s=0)


def test_cut_off_node_keeps_its_processes() -> None:
    async def body(server: ApiServer) -> None:
        make(server, "p", SLEEP)
        pod = await server.wait("pods", "ft", "p", phase("Running"))
        server.cluster.lose_node(pod["spec"]["nodeName"], power=False)
        await server.wait("pods", "ft", "p", lambda now: "deletionTimestamp" in now["metadata"])
        assert marked(server.runtime.mark(pod, "main"))
        server.cluster.regain_node(pod["spec"]["nodeName"])
        await server.wait("pods", "ft", "p", lambda now: now is None)
        assert not marked(server.runtime.mark(pod, "main"))

    run(body, tolerated_s=0)


def test_memory_kill_deadline_and_eviction() -> None:
    async def body(server: ApiServer) -> None:
        make(server, "oom", SLEEP)
        make(server, "late", SLEEP, activeDeadlineSeconds=1, terminationGracePeriodSeconds=0)
        make(server, "evicted", SLEEP)
        for name in ("oom", "evicted"):
            await server.wait("pods", "ft", name, phase("Running"))
        server.cluster.end_container("ft", "oom", 137, "OOMKilled")
        server.cluster.evict("ft", "evicted")
        found = {name: await server.wait("pods", "ft", name, phase("Failed")) for name in ("oom", "late", "evicted")}
        assert (ended(found["oom"])["exitCode"], ended(found["oom"])["reason"]) == (137, "OOMKilled")
        assert found["late"]["status"]["reason"] == "DeadlineExceeded"
        assert found["evicted"]["status"]["reason"] == "Evicted"
        assert [
            each["reason"] for each in found["evicted"]["status"]["conditions"] if each["type"] == "DisruptionTarget"
        ]

    run(body)


def test_init_containers_run_first_one_after_the_other() -> None:
    async def body(server: ApiServer) -> None:
        mount = {"volumeMounts": [{"name": "d", "mountPath": "/data"}]}
        inits = [
            {"name": f"i{n}", "image": "x", "command": ["sh", "-c", f"echo i{n} >> /data/order"], **mount}
            for n in (1, 2)
        ]
        make(server, "p", "print(open('/data/order').read().split())", container=mount, initContainers=inits,
             volumes=[{"name": "d", "emptyDir": {}}])  # fmt: skip
        pod = await server.wait("pods", "ft", "p", phase("Succeeded", "Failed"))
        assert output(server, pod) == "['i1', 'i2']\n"

    run(body)


def test_pod_asks_the_server_as_its_service_account() -> None:
    rbac = "rbac.authorization.k8s.io"

    async def body(server: ApiServer) -> None:
        create, resource = server.objects.create, server.resource
        create(resource("serviceaccounts"), "ft", {"metadata": {"name": "sa"}})
        rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
        create(resource(f"roles.{rbac}"), "ft", {"metadata": {"name": "r"}, "rules": rules})
        subjects = [{"kind": "ServiceAccount", "name": "sa", "namespace": "ft"}]
        bound = {"metadata": {"name": "b"}, "subjects": subjects, "roleRef": {"kind": "Role", "name": "r"}}
        create(resource(f"rolebindings.{rbac}"), "ft", bound)
        env = [{"name": "ACCOUNT", "value": "/var/run/secrets/kubernetes.io/serviceaccount"}]
        make(server, "p", ASK, container={"env": env}, serviceAccountName="sa")
        pod = await server.wait("pods", "ft", "p", phase("Succeeded", "Failed"))
        assert output(server, pod).split() == ["200", "403"]

    run(body, auth=True, tls=True)


def test_output_can_be_read_and_followed_over_http() -> None:
    code = "import os, time\nprint('one', flush=True)\nwhile not os.path.exists('/d/go'): time.sleep(.01)\nprint('two')"

    async def body(server: ApiServer) -> None:
        mount = {"volumeMounts": [{"name": "d", "mountPath": "/d"}]}
        make(server, "p", code, container=mount, volumes=[{"name": "d", "emptyDir": {}}])
        pod = await server.wait("pods", "ft", "p", phase("Running"))
        while output(server, pod) != "one\n":
            await asyncio.sleep(0.01)
        path = "/api/v1/namespaces/ft/pods/p/log"

        def read(**query: Any) -> Any:
            with Client(server.url) as client:
                return client.get(path, **query)

        assert (await asyncio.to_thread(read)).body == "one\n"
        following = asyncio.create_task(asyncio.to_thread(read, follow="true"))
        (server.runtime.place(pod) / "volumes" / "d" / "go").touch()
        assert (await following).body == "one\ntwo\n"
        assert (await asyncio.to_thread(read, tailLines=1)).body == "two\n"
        missing = await asyncio.to_thread(read, previous="true")
        assert (missing.code, "previous terminated container" in missing.body["message"]) == (400, True)

    run(body)


def test_changed_config_map_reaches_a_pod_that_runs() -> None:
    code = "import time\nwhile open('/f/a').read() != 'new': time.sleep(.01)"

    async def body(server: ApiServer) -> None:
        maps = server.resource("configmaps")
        server.objects.create(maps, "ft", {"metadata": {"name": "c"}, "data": {"a": "old"}})
        mount = {"volumeMounts": [{"name": "f", "mountPath": "/f"}]}
        make(server, "p", code, container=mount, volumes=[{"name": "f", "configMap": {"name": "c"}}])
        await server.wait("pods", "ft", "p", phase("Running"))
        server.objects.patch(maps, "ft", "c", "application/merge-patch+json", {"data": {"a": "new"}})
        await server.wait("pods", "ft", "p", phase("Succeeded"))

    run(body)


def test_sidecar_runs_beside_the_others_and_ends_after_them() -> None:
    async def body(server: ApiServer) -> None:
        side = {"name": "side", "image": "x", "restartPolicy": "Always", "command": [sys.executable, "-c", SLEEP]}
        code = "import pathlib, time; p = pathlib.Path('/d/x'); p.touch()"
        make(server, "p", code, container={"volumeMounts": [{"name": "d", "mountPath": "/d"}]},
             initContainers=[side], volumes=[{"name": "d", "emptyDir": {}}])  # fmt: skip
        pod = await server.wait("pods", "ft", "p", phase("Succeeded", "Failed"))
        assert pod["status"]["phase"] == "Succeeded"
        await server.wait(
            "pods", "ft", "p", lambda now: "terminated" in now["status"]["initContainerStatuses"][0]["state"]
        )
        assert not marked(server.runtime.mark(pod, "side"))

    run(body)


def test_command_that_cannot_be_started() -> None:
    async def body(server: ApiServer) -> None:
        make(server, "p", "", container={"command": ["/no/such/program"]})
        pod = await server.wait("pods", "ft", "p", phase("Succeeded", "Failed"))
        assert (ended(pod)["exitCode"], ended(pod)["reason"]) == (128, "StartError")

    run(body)
