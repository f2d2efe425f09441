"""Pods: defaults, checks, and what of a pod may change.

Sources: Kubernetes API reference "Pod v1"; Kubernetes documentation, "Pod Lifecycle" and "Pods".
"""

from collections.abc import Iterator
from typing import Any

from .names import label_problems, name_problem
from .quantity import amount
from .status import Cause, Json, bad_request, prohibited, required, shown, unsupported, wrong

CHANGE_TEXT = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)

TOLERATED_S = 300
"""How long pods tolerate a node that is not ready or unreachable, by default; in seconds."""


def default(pod: Json, tolerated_s: int = TOLERATED_S) -> None:
    """Fill in what the API server and its default admission fill in."""
    spec = pod["spec"]
    grace = spec.get("terminationGracePeriodSeconds")
    spec.setdefault("restartPolicy", "Always")
    spec["terminationGracePeriodSeconds"] = 30 if grace is None else grace
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("serviceAccountName", "default")
    spec.setdefault("serviceAccount", spec["serviceAccountName"])
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("priority", 0)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    for each in [*spec["containers"], *(spec.get("initContainers") or ())]:
        each.setdefault("resources", {})
        each.setdefault("terminationMessagePath", "/dev/termination-log")
        each.setdefault("terminationMessagePolicy", "File")
        image = each["image"].rpartition("/")[2]
        latest = (":" not in image and "@" not in image) or image.endswith(":latest")
        each.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
        for port in each.get("ports") or ():
            port.setdefault("protocol", "TCP")
        limits = each["resources"].get("limits")
        if limits:
            each["resources"]["requests"] = {**limits, **(each["resources"].get("requests") or {})}
    for each in spec.get("volumes") or ():
        for name in ("configMap", "secret", "projected", "downwardAPI"):
            if name in each:
                each[name].setdefault("defaultMode", 420)
    tolerations = spec.setdefault("tolerations", [])
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(
            each.get("key") in (key, None) and each.get("effect") in ("NoExecute", None) for each in tolerations
        ):
            tolerations.append(
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": tolerated_s}
            )


def qos(pod: Json) -> str:
    """The pod's quality of service class."""
    asked, limited, all_limited = False, False, True
    for each in pod["spec"]["containers"]:
        resources = each.get("resources") or {}
        requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
        asked, limited = asked or bool(requests), limited or bool(limits)
        all_limited &= all(
            name in limits and amount(requests.get(name, limits[name])) == amount(limits[name])
            for name in ("cpu", "memory")
        )
    if not asked and not limited:
        return "BestEffort"
    return "Guaranteed" if all_limited else "Burstable"


def begin(pod: Json) -> None:
    """The status of a new pod."""
    pod["status"] = {"phase": "Pending", "qosClass": qos(pod)}
    if pod["spec"].get("schedulingGates"):
        text = "Scheduling is blocked due to non-empty scheduling gates"
        pod["status"]["conditions"] = [
            {"type": "PodScheduled", "status": "False", "lastProbeTime": None, "lastTransitionTime": None,
             "reason": "SchedulingGated", "message": text}
        ]  # fmt: skip


def check_types(pod: Json) -> None:
    """A 400 for what cannot be read as a Pod at all."""
    spec = pod.get("spec")
    if not isinstance(spec, dict):
        spec = pod["spec"] = {}
    for kind in ("containers", "initContainers", "volumes"):
        found = spec.get(kind)
        if found is not None and not (isinstance(found, list) and all(isinstance(each, dict) for each in found)):
            raise _unreadable(f"PodSpec.spec.{kind}", found, "v1." + kind)
    for each in [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]:
        for name in ("command", "args"):
            for value in each.get(name) or ():
                if not isinstance(value, str):
                    raise _unreadable(f"Container.spec.containers.{name}", value, "string")
        for variable in each.get("env") or ():
            if not isinstance(variable.get("value", ""), str):
                raise _unreadable("EnvVar.spec.containers.env.value", variable["value"], "string")


def _unreadable(field: str, value: Any, kind: str) -> Exception:
    name = {bool: "bool", dict: "object", list: "array", str: "string"}.get(type(value), "number")
    return bad_request(
        f'Pod in version "v1" cannot be handled as a Pod: json: cannot unmarshal {name} into Go struct field '
        f"{field} of type {kind}"
    )


def problems(pod: Json) -> Iterator[Cause]:
    """What is wrong with a pod's spec."""
    spec = pod["spec"]
    volumes = _volume_names(spec)
    yield from _volume_problems(spec)
    if not spec.get("containers"):
        yield required("spec.containers")
    names: set[str] = set()
    for kind in ("containers", "initContainers"):
        for at, each in enumerate(spec.get(kind) or ()):
            yield from _container_problems(each, f"spec.{kind}[{at}]", names, volumes)
    policies = ("Always", "OnFailure", "Never")
    if spec.get("restartPolicy", "Always") not in policies:
        yield unsupported("spec.restartPolicy", spec["restartPolicy"], policies)
    for name in ("activeDeadlineSeconds", "terminationGracePeriodSeconds"):
        value, least = spec.get(name), 1 if name.startswith("active") else 0
        if value is not None and (not isinstance(value, int) or value < least):
            text = "must be between 1 and 2147483647, inclusive" if least else "must be greater than or equal to 0"
            yield wrong(f"spec.{name}", value, text)
    for name in ("hostname", "subdomain"):
        if (value := spec.get(name)) and (found := name_problem(f"spec.{name}", value, "label")):
            yield found
    yield from label_problems("spec.nodeSelector", spec.get("nodeSelector"))
    for at, each in enumerate(spec.get("tolerations") or ()):
        if each.get("operator", "Equal") not in ("Equal", "Exists"):
            yield unsupported(f"spec.tolerations[{at}].operator", each["operator"], ("Equal", "Exists"))
        elif each.get("tolerationSeconds") is not None and each.get("effect") != "NoExecute":
            yield wrong(
                f"spec.tolerations[{at}].effect",
                each.get("effect", ""),
                "effect must be 'NoExecute' when `tolerationSeconds` is set",
            )


def _volume_names(spec: Json) -> set[str]:
    return {each.get("name", "") for each in spec.get("volumes") or ()}


def _volume_problems(spec: Json) -> Iterator[Cause]:
    names: set[str] = set()
    for at, each in enumerate(spec.get("volumes") or ()):
        field, name = f"spec.volumes[{at}]", each.get("name")
        if not name:
            yield required(f"{field}.name")
            continue
        if found := name_problem(f"{field}.name", name, "label"):
            yield found
        if name in names:
            yield Cause(f"{field}.name", "FieldValueDuplicate", f"Duplicate value: {shown(name)}")
        names.add(name)
        if len(each) < 2:
            yield required(field, "must specify a volume type")
        if len(each) > 2:
            yield prohibited(f"{field}.{list(each)[2]}", "may not specify more than 1 volume type")


def _container_problems(each: Json, field: str, names: set[str], volumes: set[str]) -> Iterator[Cause]:
    name = each.get("name")
    if not name:
        yield required(f"{field}.name")
    else:
        if found := name_problem(f"{field}.name", name, "label"):
            yield found
        if name in names:
            yield Cause(f"{field}.name", "FieldValueDuplicate", f"Duplicate value: {shown(name)}")
        names.add(name)
    if not each.get("image"):
        yield required(f"{field}.image")
    paths: set[str] = set()
    for at, mount in enumerate(each.get("volumeMounts") or ()):
        where = f"{field}.volumeMounts[{at}]"
        if mount.get("name") not in volumes:
            yield Cause(f"{where}.name", "FieldValueNotFound", f"Not found: {shown(mount.get('name', ''))}")
        path = mount.get("mountPath")
        if not path:
            yield required(f"{where}.mountPath")
        elif path in paths:
            yield wrong(f"{where}.mountPath", path, "must be unique")
        paths.add(path or "")
    for at, variable in enumerate(each.get("env") or ()):
        if not variable.get("name"):
            yield required(f"{field}.env[{at}].name")
        if variable.get("value") and variable.get("valueFrom"):
            yield wrong(f"{field}.env[{at}].valueFrom", "", "may not be specified when `value` is not empty")
    for at, port in enumerate(each.get("ports") or ()):
        number = port.get("containerPort")
        if not isinstance(number, int) or not 1 <= number <= 65535:
            yield wrong(f"{field}.ports[{at}].containerPort", number or 0, "must be between 1 and 65535, inclusive")
    yield from _resource_problems(each.get("resources") or {}, f"{field}.resources")


def _resource_problems(resources: Json, field: str) -> Iterator[Cause]:
    limits = resources.get("limits") or {}
    for kind in ("limits", "requests"):
        for name, value in (resources.get(kind) or {}).items():
            try:
                number = amount(value)
            except ValueError:
                text = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
                raise bad_request(f'Pod in version "v1" cannot be handled as a Pod: {text}') from None
            if number < 0:
                yield wrong(f"{field}.{kind}[{name}]", value, "must be greater than or equal to 0")
            extended = "/" in name
            if kind == "requests" and name in limits and number > amount(limits[name]):
                yield wrong(f"{field}.requests", value, f"must be less than or equal to {name} limit of {limits[name]}")
            elif extended and kind == "requests" and name in limits and number != amount(limits[name]):
                yield wrong(f"{field}.requests", value, f"must be equal to {name} limit of {limits[name]}")
            if extended and number % 1:
                yield wrong(f"{field}.{kind}[{name}]", value, "must be an integer")


def change_problems(old: Json, new: Json) -> Iterator[Cause]:
    """What of a change of a pod's spec is not allowed."""
    before, after = dict(old["spec"]), dict(new["spec"])
    for each in ("activeDeadlineSeconds", "tolerations", "schedulingGates"):
        first, second = before.pop(each, None), after.pop(each, None)
        if first == second:
            continue
        if each == "tolerations" and not all(one in (second or ()) for one in first or ()):
            yield prohibited("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds")
        if each == "schedulingGates" and not all(one in (first or ()) for one in second or ()):
            yield prohibited("spec.schedulingGates", "only deletion is allowed, but found new scheduling gate")
        if each == "activeDeadlineSeconds" and first is not None and (second is None or second > first):
            yield wrong("spec.activeDeadlineSeconds", second, f"must be less than or equal to previous value {first}")
    if old["spec"].get("schedulingGates"):
        for each in ("nodeSelector", "affinity"):
            before.pop(each, None)
            after.pop(each, None)
    if before.get("terminationGracePeriodSeconds", 0) < 0 and after.get("terminationGracePeriodSeconds") == 1:
        before["terminationGracePeriodSeconds"] = 1
    for kind in ("containers", "initContainers"):
        before[kind] = [{**each, "image": ""} for each in before.get(kind) or ()]
        after[kind] = [{**each, "image": ""} for each in after.get(kind) or ()]
    if before != after:
        yield prohibited("spec", CHANGE_TEXT)


def grace_s(pod: Json, asked: int | None) -> int:
    """Seconds that a deletion gives a pod; 0: it is removed at once."""
    if not pod["spec"].get("nodeName") or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    if asked is not None:
        return 1 if asked < 0 else asked
    period: int = pod["spec"].get("terminationGracePeriodSeconds", 30)
    return max(period, 0)
