"""What the matrix does not ask: apply, garbage collection, namespaces, quotas, roles, definitions, refusals."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from apiserver import ApiServerThread, Client

MAPS = "/api/v1/namespaces/ft/configmaps"
PODS = "/api/v1/namespaces/ft/pods"
NAMESPACES = "/api/v1/namespaces"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
APPLY = "application/apply-patch+yaml"


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServerThread]:
    with ApiServerThread(mode="none", namespaces=["ft"]) as running:
        yield running


@pytest.fixture
def api(server: ApiServerThread) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client
        for path in (PODS, MAPS, "/api/v1/namespaces/ft/resourcequotas"):
            client.delete(path, gracePeriodSeconds=0)


def config(name: str, owner: Any = None, block: bool = False, **more: Any) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": name}
    if owner is not None:
        meta["ownerReferences"] = [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"],
             "uid": owner["metadata"]["uid"], "blockOwnerDeletion": block}
        ]  # fmt: skip
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, **more}


def pod(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "x"}], **spec}}


def until(check: Any) -> None:
    """Controllers act after the request that they react to was answered."""
    while not check():
        time.sleep(0.005)


def message(reply: Any) -> tuple[int, str]:
    return reply.code, reply.body["message"]


def test_apply_owns_fields_and_refuses_anothers(api: Client) -> None:
    body = config("a", data={"x": "1", "y": "1"})
    first = api.patch(f"{MAPS}/a", body, APPLY, fieldManager="one")
    assert (first.code, first.body["data"]) == (201, {"x": "1", "y": "1"})
    clash = api.patch(f"{MAPS}/a", config("a", data={"x": "2"}), APPLY, fieldManager="two")
    assert message(clash) == (409, 'Apply failed with 1 conflict: conflict with "one": .data.x')
    assert clash.body["details"]["causes"][0] == {
        "reason": "FieldManagerConflict", "message": 'conflict with "one"', "field": ".data.x",
    }  # fmt: skip
    forced = api.patch(f"{MAPS}/a", config("a", data={"x": "2"}), APPLY, fieldManager="two", force="true")
    assert forced.body["data"] == {"x": "2", "y": "1"}
    left = api.patch(f"{MAPS}/a", config("a"), APPLY, fieldManager="one")
    assert left.body["data"] == {"x": "2"}


def test_applying_the_same_again_writes_nothing(api: Client) -> None:
    body = config("a", data={"x": "1"})
    first, second = (api.patch(f"{MAPS}/a", body, APPLY, fieldManager="one") for _ in range(2))
    assert first.body["metadata"]["resourceVersion"] == second.body["metadata"]["resourceVersion"]


def test_update_that_changes_nothing_has_no_new_revision(api: Client) -> None:
    made = api.post(MAPS, config("a", data={"x": "1"})).body
    assert api.put(f"{MAPS}/a", made).body["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


def test_dry_run_stores_nothing(api: Client) -> None:
    assert api.post(MAPS, config("a"), dryRun="All").code == 201
    assert api.get(f"{MAPS}/a").code == 404


def test_dependents_are_collected_in_the_background(api: Client) -> None:
    owner = api.post(MAPS, config("owner")).body
    api.post(MAPS, config("child", owner))
    api.delete(f"{MAPS}/owner")
    until(lambda: api.get(f"{MAPS}/child").code == 404)
    api.post(MAPS, config("late", owner))
    until(lambda: api.get(f"{MAPS}/late").code == 404)


def test_orphans_stay_and_foreground_waits_for_dependents(api: Client) -> None:
    owner = api.post(MAPS, config("owner")).body
    api.post(MAPS, config("child", owner))
    api.delete(f"{MAPS}/owner", propagationPolicy="Orphan")
    until(lambda: api.get(f"{MAPS}/owner").code == 404)
    assert (
        "ownerReferences" not in api.get(f"{MAPS}/child").body["metadata"]
        or not api.get(f"{MAPS}/child").body["metadata"]["ownerReferences"]
    )
    owner = api.post(MAPS, config("owner")).body
    held = config("held", owner, block=True)
    held["metadata"]["finalizers"] = ["example.org/hold"]
    api.post(MAPS, held)
    api.delete(f"{MAPS}/owner", propagationPolicy="Foreground")
    until(lambda: "deletionTimestamp" in api.get(f"{MAPS}/held").body["metadata"])
    assert api.get(f"{MAPS}/owner").body["metadata"]["finalizers"] == ["foregroundDeletion"]
    api.patch(f"{MAPS}/held", {"metadata": {"finalizers": None}})
    until(lambda: api.get(f"{MAPS}/owner").code == 404)


def test_namespace_is_emptied_and_then_gone(api: Client) -> None:
    assert message(api.post("/api/v1/namespaces/gone/configmaps", config("a"))) == (404, 'namespaces "gone" not found')
    api.post(NAMESPACES, {"metadata": {"name": "gone"}})
    until(lambda: api.get("/api/v1/namespaces/gone/serviceaccounts/default").code == 200)
    held = config("held")
    held["metadata"]["finalizers"] = ["example.org/hold"]
    api.post("/api/v1/namespaces/gone/configmaps", held)
    assert api.delete(f"{NAMESPACES}/gone").body["status"]["phase"] == "Terminating"
    late = api.post("/api/v1/namespaces/gone/configmaps", config("late"))
    assert (late.code, late.body["details"]["causes"][0]["reason"]) == (403, "NamespaceTerminating")
    api.patch("/api/v1/namespaces/gone/configmaps/held", {"metadata": {"finalizers": None}})
    until(lambda: api.get(f"{NAMESPACES}/gone").code == 404)


def test_quota_refuses_what_exceeds_it(api: Client) -> None:
    hard = {"pods": "1", "requests.nvidia.com/gpu": "8", "count/configmaps": "2"}
    api.post("/api/v1/namespaces/ft/resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": hard}})
    gpus = [{"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": 16}}}]
    assert message(api.post(PODS, pod("big", containers=gpus))) == (
        403,
        'pods "big" is forbidden: exceeded quota: q, requested: requests.nvidia.com/gpu=16, '
        "used: requests.nvidia.com/gpu=0, limited: requests.nvidia.com/gpu=8",
    )
    assert api.post(PODS, pod("one")).code == 201
    assert message(api.post(PODS, pod("two"))) == (
        403,
        'pods "two" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1',
    )
    until(lambda: api.get("/api/v1/namespaces/ft/resourcequotas/q").body["status"]["used"]["pods"] == "1")
    api.patch(f"{PODS}/one/status", {"status": {"phase": "Succeeded"}})
    assert api.post(PODS, pod("two")).code == 201


@pytest.mark.parametrize(("path", "body", "code", "text"), [
    (MAPS, config("A"), 422, 'ConfigMap "A" is invalid: metadata.name: Invalid value: "A": a lowercase RFC 1123'),
    (MAPS, {"metadata": {"name": "a", "labels": {"k": "x" * 64}}}, 422, "must be no more than 63 bytes"),
    (MAPS, {"metadata": {"name": "a", "labels": {"k": 1}}}, 400, "cannot unmarshal number into Go struct"),
    (MAPS, config("a", data={"x": "y" * (1024 * 1024 + 1)}), 422, "Too long: may not be more than 1048576 bytes"),
    (MAPS, {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "a"}}, 400, "cannot be handled as a ConfigMap"),
    (MAPS, {"metadata": {"name": "a", "namespace": "b"}}, 400, "the namespace of the provided object does not match"),
    (PODS, pod("a", restartPolicy="Sometimes"), 422, 'Unsupported value: "Sometimes": supported values: "Always"'),
    (PODS, pod("a", containers=[{"name": "c", "image": "x", "env": [{"name": "A", "value": 1}]}]), 400, "EnvVar.spec"),
    (PODS, pod("a", containers=[{"name": "c", "image": "x", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]), 422,
     'spec.containers[0].volumeMounts[0].name: Not found: "v"'),
    (PODS, pod("a", serviceAccountName="nobody"), 403, 'serviceaccount "nobody" not found'),
    (PODS, pod("a", priorityClassName="high"), 403, "no PriorityClass with name high was found"),
])  # fmt: skip
def test_refusals(api: Client, path: str, body: Any, code: int, text: str) -> None:
    reply = api.post(path, body)
    assert reply.code == code and text in reply.body["message"], reply.body


def test_requests_that_cannot_be_read(api: Client) -> None:
    assert api.call("POST", MAPS, b"{").code == 400
    assert api.call("POST", MAPS, b"\x00", "application/vnd.kubernetes.protobuf").code == 415
    assert api.call("POST", MAPS, b"x" * (3 * 1024 * 1024 + 1)).code == 413
    api.post(MAPS, config("a"))
    assert api.patch(f"{MAPS}/a", {}, "application/json").code == 415
    assert api.call("POST", f"{MAPS}/a", config("a")).code == 405
    assert api.get("/api/v1/namespaces/ft/nonsense").code == 404
    assert api.get(PODS, fieldSelector="spec.color=red").code == 400
    assert api.get(PODS, labelSelector="a in b").code == 400
    assert api.get(PODS, resourceVersion="x").code == 400
    later = api.get(PODS, resourceVersion=10**9)
    assert (later.code, later.body["reason"]) == (504, "Timeout")


def test_immutable_config_map_and_secret_data(api: Client) -> None:
    api.post(MAPS, config("a", data={"x": "1"}, immutable=True))
    assert message(api.patch(f"{MAPS}/a", {"data": {"x": "2"}})) == (
        422,
        'ConfigMap "a" is invalid: data: Forbidden: field is immutable when `immutable` is set',
    )
    secrets = "/api/v1/namespaces/ft/secrets"
    made = api.post(secrets, {"metadata": {"name": "s"}, "stringData": {"k": "v"}}).body
    assert (made["data"], made["type"], "stringData" in made) == ({"k": "dg=="}, "Opaque", False)
    api.delete(f"{secrets}/s")


def definition(plural: str, kind: str, schema: Any) -> dict[str, Any]:
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.example.org"},
        "spec": {"group": "example.org", "scope": "Namespaced", "names": {"plural": plural, "kind": kind},
                 "versions": [version]},
    }  # fmt: skip


def test_custom_resource_by_its_schema_and_its_end(api: Client) -> None:
    part = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
    properties = {
        "size": {"type": "integer", "minimum": 1, "default": 4},
        "mode": {"type": "string", "enum": ["a", "b"]},
        "parts": {"type": "array", "items": part},
    }
    spec = {"type": "object", "required": ["mode"], "properties": properties}
    assert (
        api.post(DEFINITIONS, definition("toys", "Toy", {"type": "object", "properties": {"spec": spec}})).code == 201
    )
    path = "/apis/example.org/v1/namespaces/ft/toys"
    kind = {"apiVersion": "example.org/v1", "kind": "Toy"}

    def toy(**spec: Any) -> Any:
        return api.post(path, {**kind, "metadata": {"name": "t"}, "spec": spec})

    assert message(toy(size=0, mode="c", parts=[{}])) == (
        422,
        'Toy.example.org "t" is invalid: [spec.size: Invalid value: 0: spec.size in body should be greater than or '
        'equal to 1, spec.mode: Unsupported value: "c": supported values: "a", "b", '
        "spec.parts[0].name: Required value]",
    )
    assert message(toy(mode=1))[1].endswith(
        'spec.mode: Invalid value: "integer": spec.mode in body must be of type string: "integer"'
    )
    strict = api.post(
        path, {**kind, "metadata": {"name": "t"}, "spec": {"mode": "a", "hue": 1}}, fieldValidation="Strict"
    )
    assert message(strict) == (400, 'strict decoding error: unknown field "spec.hue"')
    made = toy(mode="a", hue=1)
    assert (made.code, made.body["spec"], made.headers["Warning"]) == (
        201, {"size": 4, "mode": "a"}, '299 - "unknown field \\"spec.hue\\""',
    )  # fmt: skip
    made.body["metadata"].pop("resourceVersion")
    assert message(api.put(f"{path}/t", made.body))[0] == 422
    conditions = api.get(f"{DEFINITIONS}/toys.example.org").body["status"]["conditions"]
    assert {each["type"]: each["status"] for each in conditions} == {"NamesAccepted": "True", "Established": "True"}
    api.delete(f"{DEFINITIONS}/toys.example.org")
    until(lambda: api.get(path).code == 404)
    assert api.get(f"{DEFINITIONS}/toys.example.org").code == 404


def test_roles_decide_by_token() -> None:
    with ApiServerThread(mode="none", namespaces=["ft"], auth=True, tls=True) as running:
        server = running.server
        ca = server.ca_pem.decode()
        with Client(running.url, server.access.admin_token, ca) as admin:
            admin.post("/api/v1/namespaces/ft/serviceaccounts", {"metadata": {"name": "sa"}})
            rules = [{"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["get", "list"]}]
            admin.post(f"{RBAC}/namespaces/ft/roles", {"metadata": {"name": "reader"}, "rules": rules})
            subjects = [{"kind": "ServiceAccount", "name": "sa", "namespace": "ft"}]
            ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
            body = {"metadata": {"name": "b"}, "subjects": subjects, "roleRef": ref}
            assert admin.post(f"{RBAC}/namespaces/ft/rolebindings", body).code == 201
            issued = admin.post("/api/v1/namespaces/ft/serviceaccounts/sa/token", {}).body["status"]["token"]
        with Client(running.url, issued, ca) as account:
            assert account.get(PODS).code == 200
            assert message(account.post(PODS, pod("p"))) == (
                403,
                'pods is forbidden: User "system:serviceaccount:ft:sa" cannot create resource "pods" in API group "" '
                'in the namespace "ft"',
            )
            assert message(account.get("/api/v1/nodes/n"))[1] == (
                'nodes "n" is forbidden: User "system:serviceaccount:ft:sa" cannot get resource "nodes" in API group '
                '"" at the cluster scope'
            )
            asked = {"namespace": "ft", "verb": "list", "resource": "pods"}
            review = {"spec": {"resourceAttributes": asked}}
            path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
            assert account.post(path, review).body["status"]["allowed"] is True
        with Client(running.url, "nonsense", ca) as stranger:
            assert message(stranger.get(PODS)) == (401, "Unauthorized")
        assert len(server.access.denied) == 2


def test_kubeconfig_names_the_server(server: ApiServerThread, tmp_path: Any) -> None:
    import yaml

    path = server.server.kubeconfig(tmp_path / "config", namespace="ft")
    found = yaml.safe_load(path.read_text())
    assert found["clusters"][0]["cluster"]["server"] == server.url
    assert found["contexts"][0]["context"]["namespace"] == "ft"
    assert json.dumps(found)
