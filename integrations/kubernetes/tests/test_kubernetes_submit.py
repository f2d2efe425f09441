"""``submit`` and ``delete``: whose an object is that exists already, and that nothing of a job stays."""

import argparse
import asyncio
import json
from typing import Any

import pytest
import yaml
from ftcore_kubernetes import commands
from ftcore_kubernetes.api import Api
from ftcore_kubernetes.job_file import TrainJob
from ftcore_kubernetes.manifests import objects, path_of, possible_names
from ftcore_kubernetes.pods import JOB_KEY, PodIdentity
from ftcore_kubernetes.secrets import own_secrets
from ftcore_kubernetes.submit import BeingDeleted, delete, submit
from kubernetes_site import NAME, SPACE, JobSite, job, run, started, until

from ftcore.errors import Refused

ROOT = f"/api/v1/namespaces/{SPACE}/configmaps/{NAME}"


def stored(site: JobSite) -> dict[str, dict[str, Any]]:
    """The objects of the job that exist, by kind and name."""
    found = {}
    for obj in possible_names(NAME, SPACE):
        group = obj["apiVersion"].rpartition("/")[0]
        plural = f"{obj['kind'].lower()}s" + (f".{group}" if group else "")
        metadata = obj["metadata"]
        if (each := site.server.get(plural, metadata.get("namespace", ""), metadata["name"])) is not None:
            found[f"{obj['kind']}/{metadata['name']}"] = each
    return found


def own(text: str = "cordon") -> TrainJob:
    return job(2, text)


async def applied(api: Api, given: TrainJob) -> None:
    """As ``ftctl k8s secrets`` and ``render`` with ``kubectl apply``: no object has an owner."""
    for obj in own_secrets(given, SPACE) + objects(given, SPACE):
        await api.create(path_of(obj, named=False), obj)


def test_a_job_that_is_deleted_and_submitted_again_gets_its_own_objects() -> None:
    """The garbage collector is late. The objects of the earlier job are waited for, and never taken over."""

    async def scenario() -> None:
        async with started(2) as site:
            await delete(site.api, NAME, SPACE)
            await submit(site.api, own(), SPACE)
            site.server.controllers.pause()
            await site.api.delete(ROOT, propagation="Background")
            with pytest.raises(BeingDeleted, match=r"Secret/llm-token of an earlier job llm is still being deleted"):
                await submit(site.api, own(), SPACE)
            again = asyncio.create_task(submit(site.api, own(), SPACE, patience_s=30))
            await asyncio.sleep(0)
            site.server.controllers.resume()
            created = await again
            assert {"Secret/llm-token", "ServiceAccount/llm", "Role/llm", "Job/llm-master"} <= set(created)
            uid = stored(site)["ConfigMap/llm"]["metadata"]["uid"]
            for text, obj in stored(site).items():
                owners = [each["uid"] for each in obj["metadata"].get("ownerReferences", ())]
                assert owners == ([] if text.startswith(("ConfigMap", "Cluster")) else [uid]), text

    run(scenario)


@pytest.mark.parametrize("kind", ["ConfigMap", "ServiceAccount", "Job"])
def test_an_object_that_waits_for_its_finalizer_is_being_deleted(kind: str) -> None:
    """It may have the right owner and label."""

    async def scenario() -> None:
        async with started(2) as site:
            await submit(site.api, own("avoid"), SPACE)
            (obj,) = [each for each in objects(own("avoid"), SPACE) if each["kind"] == kind]
            path = path_of(obj, named=True)
            await site.api.patch(path, {"metadata": {"finalizers": ["example.org/hold"]}})
            await site.api.delete(path, propagation="Background")
            with pytest.raises(BeingDeleted, match=f"{kind}/{obj['metadata']['name']} of an earlier job"):
                await submit(site.api, own("avoid"), SPACE)
            await site.api.patch(path, {"metadata": {"finalizers": None}})

    run(scenario)


def test_an_object_of_somebody_else_is_a_refusal_with_its_name() -> None:
    """It has not the job's label, and is kept."""

    async def scenario() -> None:
        async with started(2) as site:
            account = {"metadata": {"name": NAME, "labels": {"app": "other"}}}
            await site.api.create(f"/api/v1/namespaces/{SPACE}/serviceaccounts", account)
            with pytest.raises(Refused, match=r"ServiceAccount/llm exists and is not part of job llm .* delete it"):
                await submit(site.api, own("avoid"), SPACE)
            await delete(site.api, NAME, SPACE)
            await until(lambda: list(stored(site)) == ["ServiceAccount/llm"], "what is not the job's stays")

    run(scenario)


def test_the_config_map_of_a_dead_resource_is_no_job() -> None:
    """Of a resource with another identity; a living resource's job is complete, for ``ftctl k8s submit``, too."""

    async def scenario() -> None:
        async with started(2) as site:
            site.server.controllers.pause()
            path = f"/api/v1/namespaces/{SPACE}/configmaps"
            living = await site.api.create(path, {"metadata": {"name": "resource"}})
            owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "resource", "uid": living["metadata"]["uid"]}
            dead = owner | {"uid": "00000000-0000-0000-0000-000000000000"}
            await site.api.patch(ROOT, {"metadata": {"ownerReferences": [dead]}})
            for given in (owner, None):
                with pytest.raises(BeingDeleted, match="ConfigMap/llm of an earlier job"):
                    await submit(site.api, own("avoid"), SPACE, given)
            await site.api.patch(ROOT, {"metadata": {"ownerReferences": [owner]}})
            assert "ConfigMap/llm" not in await submit(site.api, own("avoid"), SPACE)
            assert await submit(site.api, own("avoid"), SPACE, owner) == []
            await site.api.patch(ROOT, {"metadata": {"ownerReferences": None}})
            with pytest.raises(Refused, match="exists without this resource: delete it"):
                await submit(site.api, own("avoid"), SPACE, owner)

    run(scenario)


def test_the_same_job_in_other_words_is_the_same_job() -> None:
    """The text of its config map may be an earlier version's, or have been edited; another job is refused."""

    async def scenario() -> None:
        async with started(2) as site:
            text = yaml.safe_dump(json.loads(site.data[JOB_KEY].replace('"replicas": 1', '"replicas": 2')))
            await site.api.patch(ROOT, {"data": {JOB_KEY: text}})
            assert "ConfigMap/llm" not in await submit(site.api, own("avoid"), SPACE)
            with pytest.raises(Refused, match="exists with another job file"):
                await submit(site.api, own("taint"), SPACE)
            await site.api.patch(ROOT, {"data": {JOB_KEY: "no job"}})
            with pytest.raises(Refused, match="config map llm exists and holds no job"):
                await submit(site.api, own("avoid"), SPACE)

    run(scenario)


@pytest.mark.parametrize("way", ["apply", "submit", "config map gone"])
def test_delete_leaves_nothing(way: str) -> None:
    """Also of a job of ``render`` and ``kubectl apply``, whose objects have no owner."""

    async def scenario() -> None:
        async with started(2) as site:
            await delete(site.api, NAME, SPACE)
            if way == "submit":
                await submit(site.api, own(), SPACE)
            else:
                await applied(site.api, own())
            await site.open().pool.create(PodIdentity(effect="start/0", place=0))
            assert {"ClusterRole/ftcore:train:llm", "Secret/llm-token", "Job/llm-master"} <= set(stored(site))
            if way == "config map gone":
                await site.api.delete(ROOT)
            found = await delete(site.api, NAME, SPACE)
            assert not found.problems and "ClusterRoleBinding/ftcore:train:llm" in found.deleted
            await until(lambda: not stored(site) and not site.pods, "an empty namespace")
            assert (await delete(site.api, NAME, SPACE)).deleted == []

    run(scenario)


def test_delete_refuses_what_is_no_job_and_names_what_stays(capsys: pytest.CaptureFixture[str]) -> None:
    """A config map without the job's label is not touched; the rest is deleted in spite of a missing right."""

    async def scenario() -> None:
        async with started(2) as site:
            path = f"/api/v1/namespaces/{SPACE}/configmaps"
            await site.api.create(path, {"metadata": {"name": "settings", "labels": {"app": "other"}}})
            with pytest.raises(Refused, match="config map train/settings is not a job's: it has no label"):
                await delete(site.api, "settings", SPACE)
            assert site.server.get("configmaps", SPACE, "settings") is not None
            await delete(site.api, NAME, SPACE)
            await applied(site.api, own())
            fault = site.server.faults.add(
                verbs=["delete"], resources=["roles"], code=403, message='User "me" cannot delete resource "roles"'
            )
            code = await commands._delete(site.api, NAME, SPACE, argparse.Namespace())
            assert code == 1 and site.server.faults.remove(fault) == 1
            printed = capsys.readouterr()
            assert printed.out == "deleted train/llm\n"
            assert printed.err.startswith("ftctl k8s: not deleted: Role/llm: a right is missing")
            assert printed.err.count("\n") == 1
            await until(lambda: list(stored(site)) == ["Role/llm"], "the rest")

    run(scenario)
