"""Names, labels and annotations: what is allowed; times; generated names.

Source: Kubernetes documentation, "Object Names and IDs" and "Labels and Selectors".
"""

import random
import re
import time
from collections.abc import Iterator
from typing import Any

from .resources import Resource
from .status import Cause, Json, required, wrong

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
PATH = re.compile(r"[^/%]+")

SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
LABEL_1035_TEXT = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)
VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
KEY_TEXT = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)

ANNOTATIONS_BYTES_MAX = 256 * 1024
ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""Characters of generated names: no vowels."""


def generated(prefix: str, chance: random.Random) -> str:
    """A name for ``generateName``."""
    return prefix[:58] + "".join(chance.choices(ALPHABET, k=5))


def stamp(seconds: float | None = None) -> str:
    """A time as the API writes it, now by default."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def name_problem(field: str, value: str, kind: str) -> Cause | None:
    """What is wrong with a name, which is a ``label``, a ``label-1035``, a ``subdomain`` or a ``path``."""
    if kind == "path":
        return (
            None if PATH.fullmatch(value) and value not in (".", "..") else wrong(field, value, "may not contain '/'")
        )
    pattern, longest, text = {
        "label": (LABEL, 63, LABEL_TEXT),
        "label-1035": (LABEL_1035, 63, LABEL_1035_TEXT),
        "subdomain": (SUBDOMAIN, 253, SUBDOMAIN_TEXT),
    }[kind]
    if len(value) > longest:
        return wrong(field, value, f"must be no more than {longest} bytes")
    return None if pattern.fullmatch(value) else wrong(field, value, text)


NAME_KINDS = {"services": "label-1035", "namespaces": "label"} | dict.fromkeys(
    ("roles", "rolebindings", "clusterroles", "clusterrolebindings"), "path"
)


def metadata_problems(resource: Resource, meta: Json) -> Iterator[Cause]:
    """What is wrong with an object's metadata."""
    name = meta.get("name")
    if not name:
        yield required("metadata.name", "name or generateName is required")
    elif found := name_problem("metadata.name", name, NAME_KINDS.get(resource.plural, "subdomain")):
        yield found
    yield from label_problems("metadata.labels", meta.get("labels"))
    annotations: dict[str, Any] = meta.get("annotations") or {}
    size = 0
    for key, value in annotations.items():
        yield from _key_problems("metadata.annotations", key.lower())
        size += len(key) + len(value)
    if size > ANNOTATIONS_BYTES_MAX:
        text = f"Too long: may not be more than {ANNOTATIONS_BYTES_MAX} bytes"
        yield Cause("metadata.annotations", "FieldValueTooLong", text)
    for at, each in enumerate(meta.get("ownerReferences") or ()):
        for key in ("apiVersion", "kind", "name", "uid"):
            if not each.get(key):
                yield required(f"metadata.ownerReferences[{at}].{key}")
    for at, each in enumerate(meta.get("finalizers") or ()):
        if "/" not in each and each not in ("orphan", "foregroundDeletion", "kubernetes"):
            yield wrong(
                f"metadata.finalizers[{at}]",
                each,
                "name is neither a standard finalizer name nor is it fully qualified",
            )


def label_problems(field: str, labels: dict[str, str] | None) -> Iterator[Cause]:
    """What is wrong with labels."""
    for key, value in (labels or {}).items():
        yield from _key_problems(field, key)
        if len(value) > 63:
            yield wrong(field, value, "must be no more than 63 bytes")
        elif value and not QUALIFIED.fullmatch(value):
            yield wrong(field, value, VALUE_TEXT)


def _key_problems(field: str, key: str) -> Iterator[Cause]:
    prefix, slash, name = key.rpartition("/")
    if slash and not (SUBDOMAIN.fullmatch(prefix) and len(prefix) <= 253):
        yield wrong(field, key, "prefix part " + SUBDOMAIN_TEXT)
    if len(name) > 63:
        yield wrong(field, key, "name part must be no more than 63 bytes")
    elif not QUALIFIED.fullmatch(name):
        yield wrong(field, key, KEY_TEXT)
