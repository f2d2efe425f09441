"""The volumes and the environment of a pod whose containers are local processes.

A process sees the machine's file system, so each mount path is replaced by the volume's directory wherever it occurs
as a path in the container's command, arguments, environment and working directory.
"""

import base64
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .container import StartError
from .objects import Objects
from .selector import at
from .status import Json

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


class Sources:
    """Reads config maps and secrets of one namespace."""

    def __init__(self, objects: Objects, namespace: str) -> None:
        self._objects, self._namespace = objects, namespace

    def data(self, plural: str, name: str) -> dict[str, bytes] | None:
        """The entries of a config map or secret; None if there is none."""
        found = self._objects.store.get(self._objects.catalog.get(plural), self._namespace, name)
        if found is None:
            return None
        data = found.object.get("data") or {}
        if plural == "secrets":
            return {key: base64.b64decode(value) for key, value in data.items()}
        more = {key: base64.b64decode(value) for key, value in (found.object.get("binaryData") or {}).items()}
        return {key: value.encode() for key, value in data.items()} | more


def downward(pod: Json, path: str) -> str:
    """A field for ``fieldRef``."""
    if found := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
        return str((pod["metadata"].get(found[1]) or {}).get(found[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        entries = pod["metadata"].get(path.partition(".")[2]) or {}
        return "\n".join(f'{key}="{value}"' for key, value in sorted(entries.items()))
    value = at(pod, path)
    return "" if value is None else str(value)


def _entries(volume: Json, pod: Json, sources: Sources) -> dict[str, bytes] | None:
    """The files of a volume that is made of objects; None if it is of another kind. Raises StartError."""
    if "projected" in volume:
        found: dict[str, bytes] = {}
        for each in volume["projected"].get("sources") or ():
            found |= _entries({"name": volume["name"], **_named(each)}, pod, sources) or {}
        return found
    if "downwardAPI" in volume:
        items = volume["downwardAPI"].get("items") or ()
        refs = {each["path"]: each["fieldRef"]["fieldPath"] for each in items if "fieldRef" in each}
        return {path: downward(pod, field).encode() for path, field in refs.items()}
    for kind, plural, key in (("configMap", "configmaps", "name"), ("secret", "secrets", "secretName")):
        if kind not in volume:
            continue
        about = volume[kind]
        data = sources.data(plural, about.get(key, ""))
        if data is None:
            if about.get("optional"):
                return {}
            text = f'MountVolume.SetUp failed for volume "{volume["name"]}"'
            raise StartError("ContainerCreating", f'{text} : {plural[:-1]} "{about.get(key)}" not found')
        if items := about.get("items"):
            return {each["path"]: data[each["key"]] for each in items if each["key"] in data}
        return data
    return None


def _named(source: Json) -> Json:
    """A projected source with its secret named as in a volume."""
    if "secret" in source:
        return {"secret": {"secretName": source["secret"].get("name"), **source["secret"]}}
    return {key: value for key, value in source.items() if key in ("configMap", "downwardAPI")}


def make(pod: Json, place: Path, shared: Path, sources: Sources) -> dict[str, Path]:
    """Make the directories of a pod's volumes, or write changed ones anew; raises StartError."""
    found: dict[str, Path] = {}
    for volume in pod["spec"].get("volumes") or ():
        path = place / "volumes" / volume["name"]
        entries = _entries(volume, pod, sources)
        if entries is not None:
            _write(path, entries)
        elif "hostPath" in volume:
            path = Path(volume["hostPath"]["path"])
            if volume["hostPath"].get("type") == "DirectoryOrCreate":
                path.mkdir(parents=True, exist_ok=True)
        elif "persistentVolumeClaim" in volume:
            claim = volume["persistentVolumeClaim"]["claimName"]
            path = shared / pod["metadata"]["namespace"] / claim
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.mkdir(parents=True, exist_ok=True)
        found[volume["name"]] = path
    return found


def _write(path: Path, entries: Mapping[str, bytes]) -> None:
    """Write the files of a volume; each is replaced at once, as a mounted config map's are."""
    path.mkdir(parents=True, exist_ok=True)
    for name, data in entries.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists() and file.read_bytes() == data:
            continue
        fresh = file.with_name(f".{file.name}.new")
        fresh.write_bytes(data)
        fresh.replace(file)
    for file in path.rglob("*"):
        if file.is_file() and str(file.relative_to(path)) not in entries:
            file.unlink()


def remove(place: Path) -> None:
    """Remove a pod's own directories."""
    shutil.rmtree(place, ignore_errors=True)


class Places:
    """Replaces mount paths by directories, in text."""

    def __init__(self, container: Json, volumes: Mapping[str, Path], more: Mapping[str, Path]) -> None:
        self._places: dict[str, str] = {path: str(where) for path, where in more.items()}
        for each in container.get("volumeMounts") or ():
            where = volumes[each["name"]]
            if each.get("subPath"):
                where = where / each["subPath"]
                if not where.exists() and each["name"] in volumes and not where.suffix:
                    where.mkdir(parents=True, exist_ok=True)
            self._places[each["mountPath"].rstrip("/") or "/"] = str(where)
        paths = sorted(self._places, key=len, reverse=True)
        self._pattern = re.compile(
            r"(?<![\w./-])(" + "|".join(re.escape(each) for each in paths) + r""")(?=$|[/\s:;,"'=&|)\]}])"""
        )

    def replace(self, text: str) -> str:
        """The text with the real paths."""
        if not self._places:
            return text
        return self._pattern.sub(lambda found: self._places[found[1]], text)


_VARIABLE = re.compile(r"\$(\$)?\(([-A-Za-z_.][-A-Za-z0-9_.]*)\)")


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """``$(NAME)`` replaced, ``$$(NAME)`` kept as ``$(NAME)``."""

    def value(found: re.Match[str]) -> str:
        if found[1]:
            return found[0][1:]
        return variables.get(found[2], found[0])

    return _VARIABLE.sub(value, text)


def environment(container: Json, pod: Json, sources: Sources) -> dict[str, str]:
    """A container's variables; raises StartError if something they refer to is missing."""
    found: dict[str, str] = {}
    for each in container.get("envFrom") or ():
        for kind, plural in (("configMapRef", "configmaps"), ("secretRef", "secrets")):
            if kind in each:
                data = sources.data(plural, each[kind].get("name", ""))
                if data is None and not each[kind].get("optional"):
                    text = f'{plural[:-1]} "{each[kind].get("name")}" not found'
                    raise StartError("CreateContainerConfigError", text)
                found |= {each.get("prefix", "") + key: value.decode() for key, value in (data or {}).items()}
    for each in container.get("env") or ():
        value = _value(each["valueFrom"], container, pod, sources) if "valueFrom" in each else each.get("value", "")
        if value is not None:
            found[each["name"]] = expanded(value, found)
    return found


def _value(source: Json, container: Json, pod: Json, sources: Sources) -> str | None:
    if "fieldRef" in source:
        return downward(pod, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        kind, _, name = source["resourceFieldRef"]["resource"].partition(".")
        amounts: Any = (container.get("resources") or {}).get(kind) or {}
        return str(amounts.get(name, "0"))
    for kind, plural in (("configMapKeyRef", "configmaps"), ("secretKeyRef", "secrets")):
        if kind in source:
            about = source[kind]
            data = sources.data(plural, about["name"])
            if data is not None and about["key"] in data:
                return data[about["key"]].decode()
            if about.get("optional"):
                return None
            missing = f'{plural[:-1]} "{about["name"]}" not found'
            if data is not None:
                missing = f"couldn't find key {about['key']} in {plural[:-1]} {about['name']}"
            raise StartError("CreateContainerConfigError", missing)
    return None
