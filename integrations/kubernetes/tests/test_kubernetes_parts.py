"""Job files, manifests and the meaning of statuses: pure, or on files."""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from cryptography import x509
from etcd_cluster import free_ports, require_etcd
from ftcore_kubernetes import config, facts, places, records
from ftcore_kubernetes.adapter import parse as parse_url
from ftcore_kubernetes.edits import refused_edits
from ftcore_kubernetes.etcd_manifests import etcd_flags
from ftcore_kubernetes.job_file import GROUP, PLURAL, TrainJob, parse, read
from ftcore_kubernetes.manifests import dump, names_of, objects, possible_names
from ftcore_kubernetes.pods import PodIdentity, store_url, worker_pod
from ftcore_kubernetes.schema import custom_resource_definition, resource_schema
from ftcore_kubernetes.secrets import own_secrets
from jsonschema import Draft202012Validator

from ftcore import NodeEnded, NodeWarned
from ftcore.errors import UsageError
from ftcore.logs import open_store

JOB = """\
apiVersion: ftcore.dev/v1alpha1
kind: ElasticTrainJob
metadata:
  name: llm
  labels: {team: research}
spec:
  command: [train.py, --lr, "3e-4"]
  replicas: 3
  minReplicas: 2
  maxReplicas: 4
  ftrun: [--checkpoints=/data]
  policy: "version: 1"
  store:
    etcd: {}
  template:
    metadata: {labels: {app: mine}}
    spec:
      hostUsers: false
      priorityClassName: high
      tolerations: [{key: gpu, operator: Exists}]
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms:
              - matchExpressions: [{key: zone, operator: In, values: [a]}]
              - matchExpressions: [{key: zone, operator: In, values: [b]}]
      containers:
        - name: train
          image: train:1
          env: [{name: FTCORE_TOKEN, value: mine}]
          unknownField: {kept: true}
        - name: sidecar
          image: side:1
"""


def job(text: str = JOB) -> TrainJob:
    return parse(text, "job.yaml")


def pod(name: str = "llm-w0", place: int = 0, born: int = 0, attempt: int = 0, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "creationTimestamp": f"2026-01-01T00:00:{born:02}Z",
            "labels": {places.PLACE: str(place)},
            "annotations": {places.ATTEMPT: str(attempt)},
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "train"}]},
        "status": {"phase": "Running"} | status,
    }


def ended(code: int, reason: str = "Error", **more: Any) -> dict[str, Any]:
    states = [{"name": "train", "state": {"terminated": {"exitCode": code, "reason": reason}}}]
    return {"phase": "Failed", "containerStatuses": states} | more


# -- job file


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kind: ElasticTrainJob", "kind: Job", "job.yaml:1: expected `apiVersion: ftcore.dev/v1alpha1`"),
        ("replicas: 3", "replicas: three", "job.yaml:8: spec.replicas: expected `int`, got `str`"),
        (
            "replicas: 3",
            "replicas: 5",
            "job.yaml:8: spec.replicas: found 5; expected from minReplicas 2 to maxReplicas 4",
        ),
        ("replicas: 3", "replica: 3", "job.yaml:8: spec.replica: object contains unknown field `replica`"),
        ("etcd: {}", "etcd: {replicas: 2}", "job.yaml:14: spec.store.etcd.replicas: invalid enum value 2"),
        ("etcd: {}", "{}", "spec.store: expected exactly one of"),
        ("--checkpoints=/data", "--store=x", r"job.yaml:11: spec.ftrun[0]: --store=x is set by other keys"),
        ("image: train:1", "image: train:1, command: [a]", "no YAML"),
        ("unknownField: {kept: true}", "args: [a]", "containers[0].args: give the script in spec.command"),
        ("hostUsers: false", "restartPolicy: Always", "job.yaml:18: spec.template.spec.restartPolicy: expected Never"),
        ("name: llm", "name: LLM", "job.yaml:4: metadata.name: found 'LLM'"),
    ],
)
def test_a_wrong_job_file_names_line_and_key(old: str, new: str, message: str) -> None:
    """And what was found, and what is expected."""
    with pytest.raises(UsageError) as caught:
        job(JOB.replace(old, new, 1))
    assert message in str(caught.value)


def test_a_job_is_the_same_after_its_config_map() -> None:
    """The master reads what was submitted, and the same job is the same text."""
    once = job()
    assert job(dump(once)).spec == once.spec and dump(job(dump(once))) == dump(once)


def test_the_schema_is_structural_and_fits_the_job_file() -> None:
    """Made from one definition: what the file's reader refuses by type, the server refuses, too."""
    crd = custom_resource_definition()
    assert crd["metadata"]["name"] == f"{PLURAL}.{GROUP}" and crd["spec"]["names"]["shortNames"] == ["etj"]
    (version,) = crd["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    text = json.dumps(schema)
    assert "$ref" not in text and "anyOf" not in text
    check = Draft202012Validator(schema)
    assert not list(check.iter_errors(yaml.safe_load(JOB)))
    assert list(check.iter_errors(yaml.safe_load(JOB.replace("replicas: 3", "replicas: three"))))
    reader = {field.encode_name for field in msgspec.structs.fields(type(job().spec))}
    assert reader == set(schema["properties"]["spec"]["properties"])


def test_edits_of_a_running_job() -> None:
    """Its size within the range; everything else has a reason."""
    one = job().spec
    assert not refused_edits(one, job(JOB.replace("replicas: 3", "replicas: 4")).spec)
    edited = job(
        JOB.replace("train:1", "train:2")
        .replace("version: 1", "version: 2")
        .replace("maxReplicas: 4", "maxReplicas: 5")
    )
    found = refused_edits(one, edited.spec)
    assert [each.partition(":")[0] for each in found] == ["spec.template", "spec.maxReplicas", "spec.policy"]


# -- manifests


def test_a_worker_pod_is_the_template_and_little_else() -> None:
    """Unknown fields, sidecars and own variables stay; each alternative of an affinity avoids the machine."""
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "llm", "uid": "1"}
    made = worker_pod(job(), PodIdentity(effect="job/7/0", place=2), owner=owner, avoid=["bad"])
    template = yaml.safe_load(JOB)["spec"]["template"]["spec"]
    spec = made["spec"]
    assert made["metadata"]["ownerReferences"] == [owner] and made["metadata"]["labels"]["app"] == "mine"
    assert made["metadata"]["labels"]["team"] == "research" and made["metadata"]["name"].startswith("llm-w2-")
    assert (
        spec["restartPolicy"] == "Never"
        and spec["hostUsers"] is False
        and spec["containers"][1] == template["containers"][1]
    )
    container = spec["containers"][0]
    assert container["unknownField"] == {"kept": True} and {"name": "FTCORE_TOKEN", "value": "mine"} in container["env"]
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    avoided = [{"key": "metadata.name", "operator": "NotIn", "values": ["bad"]}]
    assert [term["matchFields"] for term in terms] == [avoided, avoided]
    command = " ".join(container["command"])
    assert command.startswith("ftrun --job llm --store etcd://llm-etcd-0.llm-etcd:2379,")
    assert "--nnodes 2:4 --policy /etc/ftcore/job/policy.yaml --node-id llm-w2-" in command
    assert command.endswith("--node-rank 2 --leave-within 30s --checkpoints=/data train.py --lr 3e-4")
    assert PodIdentity(effect="start/2", place=2).name("llm") == "llm-w2"


def test_the_rights_are_the_least() -> None:
    """No right on Secrets, on other config maps, on machines unless asked for; nothing for the workers."""
    made = objects(job(), "train")
    role = next(each for each in made if each["kind"] == "Role")
    pods, config_maps = role["rules"]
    assert pods == {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "create", "delete"]}
    assert config_maps == {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "verbs": ["get", "list", "watch", "patch"],
        "resourceNames": ["llm"],
    }
    assert not [each for each in made if each["kind"].startswith("Cluster")]
    tainting = objects(job(JOB.replace("  replicas: 3", "  quarantine: taint\n  replicas: 3")), "train")
    machines = next(each for each in tainting if each["kind"] == "ClusterRole")
    assert machines["metadata"]["name"] == "ftcore:train:llm", "unambiguous: no part can contain a colon"
    assert machines["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}]
    kinds = [each["kind"] for each in made]
    assert kinds[0] == "ConfigMap" and kinds[-1] == "Job" and "StatefulSet" in kinds
    assert {each["metadata"]["namespace"] for each in made} == {"train"}


def test_a_deletion_knows_every_object_of_a_job() -> None:
    """By kind and name, Secrets included; also of a job whose job file is gone."""
    for text in (JOB, JOB.replace("  replicas: 3", "  watchNodes: true\n  replicas: 3")):
        made = {
            (each["kind"], each["metadata"]["name"]) for each in objects(job(text), "a") + own_secrets(job(text), "a")
        }
        assert {(each["kind"], each["metadata"]["name"]) for each in names_of(job(text), "a")} == made
        assert made <= {(each["kind"], each["metadata"]["name"]) for each in possible_names("llm", "a")}
    assert possible_names("llm", "a")[0]["kind"] == "ConfigMap"


def test_gangs() -> None:
    """Each scheduler's own labels and annotations."""
    found = {}
    for name in ("volcano", "kueue", "coscheduling"):
        text = JOB.replace("  replicas: 3", f"  gang: {{scheduler: {name}, queue: q}}\n  replicas: 3")
        metadata = worker_pod(job(text), PodIdentity(effect="start/0", place=0))["metadata"]
        found[name] = {
            key: value for key, value in (metadata["labels"] | metadata["annotations"]).items() if "/" in key
        }
    assert found["volcano"]["scheduling.k8s.io/group-name"] == "llm"
    assert found["kueue"]["kueue.x-k8s.io/pod-group-total-count"] == "3"
    assert found["coscheduling"]["scheduling.x-k8s.io/pod-group"] == "llm"


def test_the_command_line_renders_without_a_cluster(tmp_path: Path) -> None:
    """``render``, ``secrets`` and ``crd`` print manifests; a wrong file is one line and code 2."""
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "wrong.yaml").write_text(JOB.replace("replicas: 3", "replicas: 0"))

    def ftctl(*argv: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ftcore.cli.ftctl", "k8s", *argv]
        env = {key: value for key, value in os.environ.items() if key != "KUBECONFIG"} | {"HOME": str(tmp_path)}
        return subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=60)

    rendered = list(yaml.safe_load_all(ftctl("render", "job.yaml", "-n", "train").stdout))
    assert rendered == json.loads(json.dumps(objects(job(), "train")))
    secrets = list(yaml.safe_load_all(ftctl("secrets", "job.yaml").stdout))
    assert [each["metadata"]["name"] for each in secrets] == ["llm-token", "llm-etcd-tls"]
    assert yaml.safe_load(ftctl("crd").stdout) == custom_resource_definition()
    wrong = ftctl("render", "wrong.yaml")
    assert wrong.returncode == 2 and "wrong.yaml:8: spec.replicas: expected `int` >= 1" in wrong.stderr
    assert wrong.stderr.count("\n") == 1


# -- statuses


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (ended(137, "OOMKilled"), "OOMKilled, exit code 137"),
        (ended(1), "Error, exit code 1"),
        ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, "Evicted: low on memory"),
        (ended(137, reason="Error") | {"reason": "DeadlineExceeded"}, "DeadlineExceeded, exit code 137"),
        ({"phase": "Failed", "reason": "NodeLost", "message": "node n1 is gone"}, "NodeLost: node n1 is gone"),
        ({"phase": "Succeeded"} | {"containerStatuses": ended(0)["containerStatuses"]}, "Completed, exit code 0"),
        (
            ended(143)
            | {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]},
            "PreemptionByScheduler, exit code 143",
        ),
    ],
)
def test_how_a_pod_ended(status: dict[str, Any], reason: str) -> None:
    """In Kubernetes' own words."""
    if status["phase"] == "Succeeded":
        status["containerStatuses"][0]["state"]["terminated"]["reason"] = "Completed"
    assert facts.report_of(pod(**status)) == NodeEnded(node="llm-w0", reason=reason)


def test_warnings_and_waiting() -> None:
    """Of a pod that is being deleted or preempted, of a machine; what waits is no node yet."""
    leaving = pod()
    leaving["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:09Z", "deletionGracePeriodSeconds": 20}
    assert facts.report_of(leaving) == NodeWarned(node="llm-w0", reason="its pod is being deleted", within_s=20)
    machine = {
        "metadata": {"name": "n1"},
        "status": {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "Lost"}]},
    }
    warned = facts.report_of(pod(), machine)
    assert isinstance(warned, NodeWarned) and warned.reason == "machine n1 is not ready (Lost)"
    assert facts.report_of(pod()) is None
    unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    assert facts.waits_for(pod(phase="Pending", conditions=[unplaced])) == "Unschedulable: 0/3 nodes"
    pulling = [{"name": "train", "image": "x", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]
    assert facts.waits_for(pod(phase="Pending", containerStatuses=pulling)) == "ImagePullBackOff: x"
    assert facts.waits_for(pod(phase="Pending")) == ""
    full = pod(hostIP="1.1.1.1", qosClass="Guaranteed") | {"kind": "Pod"}
    assert facts.slim(full)["status"] == {"phase": "Running"}


def test_which_places_are_filled() -> None:
    """Once for each pod that ended, at once after a long run, later after repeated failures or ``ftrun``'s own end."""
    live, dead = pod("llm-w0"), pod("llm-w1", 1, **ended(137))
    (filling,) = places.fillings([live, dead], 2, {})
    assert (filling.place, filling.effect, filling.attempt, filling.wait_s) == (1, "fill/1/llm-w1", 1, 0.0)
    again = pod("llm-w1-x", 1, born=1, attempt=2, **ended(137))
    (filling,) = places.fillings([live, dead, again], 2, {})
    assert (filling.effect, filling.attempt, filling.wait_s) == ("fill/1/llm-w1-x", 3, 20.0)
    for seconds, wait_s in ((119, 20.0), (120, 0.0)):
        (filling,) = places.fillings([live, dead, _ran(again, seconds)], 2, {})
        assert (filling.attempt, filling.wait_s) == (1 if wait_s == 0.0 else 3, wait_s)
    assert places.fillings([live, pod("llm-w1", 1, **ended(5))], 2, {})[0].wait_s == 10.0
    evicted = pod("llm-w1", 1, **(ended(5) | {"reason": "Evicted"}))
    assert places.fillings([live, evicted], 2, {})[0].wait_s == 0.0, "ftrun left because it had to"
    assert places.fillings([live], 2, {1: again})[0].effect == "fill/1/llm-w1-x", "its object was removed"
    assert [each.effect for each in places.fillings([], 2, {})] == ["start/0", "start/1"]
    assert places.surplus([live, pod("llm-w3", 3)], 3) == [pod("llm-w3", 3)]
    old = [pod(f"llm-w1-{number}", 1, born=number, **ended(137)) for number in range(7)]
    assert [each["metadata"]["name"] for each in places.outdated([live, *old])] == ["llm-w1-0", "llm-w1-1"]


def _ran(found: dict[str, Any], seconds: int) -> dict[str, Any]:
    """The pod, with the times of its container."""
    found = json.loads(json.dumps(found))
    begun, finished = "2026-01-01T00:00:00Z", f"2026-01-01T00:{seconds // 60:02}:{seconds % 60:02}Z"
    found["status"]["containerStatuses"][0]["state"]["terminated"] |= {"startedAt": begun, "finishedAt": finished}
    return found


def test_how_long_a_pod_ran() -> None:
    """From its container's times; from its deletion or disruption, if Kubernetes did not record the end."""
    assert facts.ran_s(facts.slim(_ran(pod(**ended(137)), 90))) == 90.0
    assert facts.ran_s(pod()) == 0.0
    started = [{"name": "train", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]
    removed = pod(containerStatuses=started)
    assert facts.ran_s(removed) == 0.0, "its end is unknown"
    removed["metadata"]["deletionTimestamp"] = "2026-01-01T01:00:00Z"
    assert facts.ran_s(removed) == 3600.0
    target = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": "2026-01-01T00:05:00Z"}
    evicted = pod(phase="Failed", reason="Evicted", startTime="2026-01-01T00:00:00Z", conditions=[target])
    assert facts.ran_s(facts.slim(evicted)) == 300.0


def test_records_of_places() -> None:
    """The newest pod of each place counts; a text that is no record is none."""
    first, second = pod("llm-w1", 1), pod("llm-w1-x", 1, born=1, attempt=1)
    found = records.newest({}, [first])
    assert found == {1: records.PlaceRecord(name="llm-w1", born="2026-01-01T00:00:00Z", attempt=0, machine="n1")}
    assert records.newest(found, [second])[1].name == "llm-w1-x"
    later = records.newest(found, [second])
    assert records.newest(later, [first]) == later, "the newest pod's object was removed"
    assert records.read_records(records.record_text(later, "llm"), "llm") == later
    for text in ("", "[]", "no JSON", '{"x": 1, "1": ["a"]}'):
        assert records.read_records(text, "llm") == {}


# -- configuration and certificates


def test_kubeconfigs(tmp_path: Path) -> None:
    """Contexts and credential plugins; errors name the missing key."""
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "echo", "args": ['{"status":{"token":"t"}}']}
    data = {
        "current-context": "one",
        "contexts": [{"name": "one", "context": {"cluster": "c", "user": "u", "namespace": "train"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1/"}}],
        "users": [{"name": "u", "user": {"exec": plugin}}],
    }
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(data))
    found = config.load({"KUBECONFIG": str(path)})
    assert (found.url, found.namespace, found.bearer()) == ("http://127.0.0.1:1", "train", "t")
    with pytest.raises(UsageError, match="contexts has no 'two'; it has: one"):
        config.load({"KUBECONFIG": str(path)}, "two")
    with pytest.raises(UsageError, match="does not exist"):
        config.load({"KUBECONFIG": str(tmp_path / "none")})
    with pytest.raises(UsageError, match=r"--context two: this pod uses its service account"):
        config.load({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "two")
    for url in ("k8s:", "k8s:a", "k8s:A/b", "k8s:a/b/c"):
        with pytest.raises(UsageError, match="expected k8s:NAMESPACE/NAME"):
            parse_url(url)


@pytest.mark.etcd
def test_the_etcd_manifest_runs_with_its_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flags of the StatefulSet start a real member; ftcore reaches it with its files."""
    (secret,) = [each for each in own_secrets(job(), "train") if each["metadata"]["name"] == "llm-etcd-tls"]
    for name, text in secret["stringData"].items():
        (tmp_path / name).write_text(text)
    flags = etcd_flags("llm-etcd", "llm-etcd-0", 1, tls=str(tmp_path), data=str(tmp_path / "data"))
    ports = dict(zip(("2379", "2380", "2381"), free_ports(3), strict=True))
    flags = [_local(flag, ports) for flag in flags]

    async def scenario() -> None:
        with (tmp_path / "log").open("wb") as log:
            member = await asyncio.create_subprocess_exec(require_etcd(), *flags, stdout=log, stderr=log)
        try:
            async with asyncio.timeout(60):
                while True:
                    with contextlib.suppress(OSError):
                        _, writer = await asyncio.open_connection("127.0.0.1", ports["2379"])
                        writer.close()
                        break
                    assert member.returncode is None, (tmp_path / "log").read_text()[-2000:]
                    await asyncio.sleep(0.05)
                for key, name in (("CA", "ca.crt"), ("CERT", "tls.crt"), ("KEY", "tls.key")):
                    monkeypatch.setenv(f"FTCORE_ETCD_{key}", str(tmp_path / name))
                store = open_store(f"etcd://127.0.0.1:{ports['2379']}/llm")
                log_of_job = await store.open("llm", create=True)
                assert await log_of_job.last_seq() == 0
                await log_of_job.close()
                await store.close()
        finally:
            member.kill()
            await member.wait()

    asyncio.run(scenario())


def _local(flag: str, ports: dict[str, int]) -> str:
    """A flag with addresses of this machine: names of pods mean nothing here."""
    for name in ("llm-etcd-0.llm-etcd", "0.0.0.0"):
        flag = flag.replace(f"//{name}:", "//127.0.0.1:")
    for port, here in ports.items():
        flag = flag.replace(f":{port}", f":{here}")
    return flag


def test_certificates_name_every_member() -> None:
    """For clients, for peers, and for the machine of a port-forward."""
    (secret,) = [each for each in own_secrets(job(), "train") if each["metadata"]["name"] == "llm-etcd-tls"]
    assert secret["metadata"]["labels"] == {"team": "research", places.JOB: "llm"}
    leaf = x509.load_pem_x509_certificate(secret["stringData"]["tls.crt"].encode())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    patterns = names.get_values_for_type(x509.DNSName)
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    clients = re.findall(r"[/,]([^:/,]+):2379", store_url(job()))
    peers = re.findall(r"//([^:/,]+):2380", " ".join(etcd_flags("llm-etcd", "llm-etcd-0", 3)))
    hosts = {host for host in clients + peers if host != "0.0.0.0"}
    assert hosts == {f"llm-etcd-{number}.llm-etcd" for number in range(3)} and set(clients) == hosts
    for host in [*hosts, "localhost", "llm-etcd", "llm-etcd-2.llm-etcd.train.svc"]:
        assert any(_covers(pattern, host) for pattern in patterns), host
    assert not any(_covers(pattern, "other-etcd-0.other-etcd") for pattern in patterns)
    authority = x509.load_pem_x509_certificate(secret["stringData"]["ca.crt"].encode())
    leaf.verify_directly_issued_by(authority)


def _covers(pattern: str, host: str) -> bool:
    """Whether a name of a certificate is valid for a host (RFC 6125): * is the whole first label."""
    if not pattern.startswith("*."):
        return pattern == host
    return host.partition(".")[2] == pattern[2:]


EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("name", ["gpu-job", "cpu-smoke"])
def test_the_examples_are_job_files(name: str) -> None:
    """And fit the schema; the operator's role has every right that it grants, and those for what it creates."""
    found = read(EXAMPLES / f"{name}.yaml")
    Draft202012Validator(resource_schema()).validate(yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text()))
    documents = list(yaml.safe_load_all((EXAMPLES / "operator.yaml").read_text()))
    role = next(each for each in documents if each["kind"] == "ClusterRole")
    has = {(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
    for obj in objects(found, "train") + own_secrets(found, "train"):
        for verb in ("create", "get"):  # to create it, and to see whose it is, if it is there
            assert (f"{obj['kind'].lower()}s", verb) in has, obj["kind"]
        for rule in obj.get("rules") or ():
            assert {(resource, verb) for resource in rule["resources"] for verb in rule["verbs"]} <= has
