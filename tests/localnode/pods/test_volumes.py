"""ConfigMaps, Secrets and pod fields in containers of the local node: when a new value arrives, as on a real kubelet.

The times that kubelet waits are shorter here. No test waits for a time to pass: where a file must not be new yet,
another pod's shows that the node knows of the edit.
"""

import asyncio
from pathlib import Path

import pytest

from cri_stubs import api_pb2 as pb
from crrd.kube.resources import CONFIG_MAPS, EVENTS, PODS, SECRETS
from tests.support.cluster import (
    WAITING_SCRIPT,
    Cluster,
    Json,
    container,
    container_id,
    container_status,
    local_cluster,
    pod_ready,
    restart_count,
    restarted,
)
from tests.support.mounted import (
    VOLUMES,
    WHOLE,
    create_config,
    edit_config,
    edit_known,
    file_of,
    reader,
    refresh,
    run_settled,
    starts,
    touch,
    wait_file,
)

VOLUME = VOLUMES[0]
READ_AT_START = f'cat "$CRRD_ROOT/etc/cfg/key" >> /shared/log; {WAITING_SCRIPT}'


async def wait_event(cluster: Cluster, pod: str, *message: str) -> None:
    selector = f"involvedObject.name={pod},reason=FailedMount"
    async with asyncio.timeout(30):
        while True:
            found = await cluster.client.list_all(EVENTS, dict, namespace=cluster.namespace, field_selector=selector)
            if "".join(message) in [event["message"] for event in found.items]:
                return
            await asyncio.sleep(0.02)


async def test_a_container_sees_all_kinds_of_volumes_and_cannot_write_to_them(cluster: Cluster) -> None:
    await create_config(cluster, "one")
    await cluster.client.create(
        SECRETS, cluster.namespace, {"metadata": {"name": "s"}, "data": {"key": "c2VjcmV0Cg=="}}
    )
    field = {"path": "key", "fieldRef": {"fieldPath": "metadata.labels['tier']"}}
    sources = [{"configMap": {"name": "cfg"}}, {"serviceAccountToken": {"path": "token"}}]
    volumes: list[Json] = [
        VOLUME,
        {"name": "s", "secret": {"secretName": "s", "defaultMode": 0o400}},
        {"name": "d", "downwardAPI": {"items": [field]}},
        {"name": "p", "projected": {"sources": sources}},
        {"name": "o", "configMap": {"name": "none", "optional": True}},
    ]
    mounts = [{"name": volume["name"], "mountPath": f"/etc/v/{volume['name']}"} for volume in volumes]
    await cluster.create_pod(
        "web", [container("app", volumeMounts=mounts)], volumes=volumes, metadata={"labels": {"tier": "front"}}
    )
    pod = await cluster.wait_pod("web", pod_ready, "ready")
    script = "cd $CRRD_ROOT/etc/v; cat cfg/key s/key p/key d/key; echo; stat -L -c %a cfg/key s/key; ls o p"
    answer = await cluster.execute(container_id(pod, "app"), "/bin/sh", "-c", script)
    assert answer.stdout.decode().split() == ["one", "secret", "one", "front", "644", "400", "o:", "p:", "key", "token"]
    status = await cluster.status(container_id(pod, "app"))
    read_only = {mount.container_path: mount.readonly for mount in status.mounts}
    assert all(read_only[mount["mountPath"]] for mount in mounts)


async def test_a_changed_pod_gets_new_files_and_no_other(cluster: Cluster) -> None:
    await create_config(cluster, "one")
    app = container("app", volumeMounts=[WHOLE])
    pods = [await run_settled(cluster, name, app) for name in ("status", "other")]
    condition = {"status": {"conditions": [{"type": "tests/mine", "status": "True"}]}}
    await cluster.client.merge_patch(PODS, cluster.namespace, "status", condition, subresource="status")
    await edit_known(cluster, "two")
    assert [file_of(cluster, pod).read_text() for pod in pods] == ["one\n", "one\n"]


async def test_a_pod_without_any_change_gets_new_files_at_the_next_sync(tmp_path: Path) -> None:
    async with local_cluster(tmp_path, relist=0.05, remount=0.05, resync=0.5) as cluster:
        await create_config(cluster, "one")
        pod = await cluster.run_pod("web", [container("app", volumeMounts=[WHOLE])], volumes=[VOLUME])
        await edit_config(cluster, "two")
        await wait_file(file_of(cluster, pod), "two\n")


async def test_a_container_restarted_right_after_an_edit_still_reads_the_old_file(tmp_path: Path) -> None:
    async with local_cluster(tmp_path, relist=0.05, remount=2.0) as cluster:
        await create_config(cluster, "one")
        pod = await run_settled(cluster, "web", container("app", READ_AT_START, volumeMounts=[WHOLE]))
        await cluster.wait_words("web", "log", "one")
        await edit_known(cluster, "two")
        await cluster.stop(container_id(pod, "app"))
        await cluster.wait_words("web", "log", "one", "one")
        await wait_file(file_of(cluster, pod), "two\n")


async def test_after_a_touch_a_restart_has_the_new_value_everywhere(cluster: Cluster) -> None:
    """A part of a volume (subPath) is bound at the start. The touch comes before the restart: no start fails."""
    await create_config(cluster, "one")
    pod = await run_settled(cluster, "web", reader())
    await edit_known(cluster, "two")
    await refresh(cluster, pod)
    script = "cat $CRRD_ROOT/etc/cfg/key $CRRD_ROOT/etc/part"
    answer = await cluster.execute(container_id(pod, "app"), "/bin/sh", "-c", script)
    assert answer.stdout == b"two\none\n"
    await cluster.stop(container_id(pod, "app"))
    after = await cluster.wait_pod("web", restarted("app"), "restarted")
    await cluster.wait_words("web", "starts", *["one"] * 3, *["two"] * 3)
    assert restart_count(after, "app") == 1


async def test_without_a_touch_the_first_start_with_a_part_of_a_volume_fails(cluster: Cluster) -> None:
    """kubernetes#68211: the file that the container is to mount has been removed when the runtime mounts it."""
    await create_config(cluster, "one")
    pod = await run_settled(cluster, "web", reader())
    await edit_known(cluster, "two")
    await cluster.stop(container_id(pod, "app"))
    after = await cluster.wait_pod("web", restarted("app", 2), "restarted twice")
    failed = container_status(after, "app")["lastState"]["terminated"]
    assert (failed["exitCode"], failed["reason"]) == (128, "StartError")
    assert "No such file or directory" in failed["message"]
    await cluster.wait_words("web", "starts", *["one"] * 3, *["two"] * 3)
    assert starts(cluster, "web") == ["one one one", "two two two"]


async def test_an_immutable_object_is_kept_until_no_pod_uses_it(cluster: Cluster) -> None:
    await create_config(cluster, "one", immutable=True)
    env = [{"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "cfg", "key": "key"}}}]
    app = container("app", f'echo "$KEY" >> /shared/log; {READ_AT_START}', volumeMounts=[WHOLE], env=env)
    pod = await cluster.run_pod("web", [app], volumes=[VOLUME])
    await cluster.wait_words("web", "log", "one", "one")
    await cluster.client.delete(CONFIG_MAPS, cluster.namespace, "cfg")
    await create_config(cluster, "two", immutable=True)
    await cluster.run_pod("next", [app], volumes=[VOLUME])
    await cluster.wait_words("next", "log", "one", "one")
    await cluster.stop(container_id(pod, "app"))
    await cluster.wait_words("web", "log", "one", "one", "one", "one")
    await cluster.delete_pod("web", grace=1)
    await cluster.delete_pod("next", grace=1)
    await cluster.run_pod("last", [app], volumes=[VOLUME])
    await cluster.wait_words("last", "log", "two", "two")


async def test_a_pod_waits_for_its_objects_and_keys_and_says_so(cluster: Cluster) -> None:
    volume = {"name": "cfg", "configMap": {"name": "cfg", "items": [{"key": "key", "path": "key"}]}}
    await cluster.create_pod("web", [container("app", READ_AT_START, volumeMounts=[WHOLE])], volumes=[volume])
    failed = 'MountVolume.SetUp failed for volume "cfg" : '
    await wait_event(cluster, "web", failed, 'configmap "cfg" not found')
    pod = await cluster.pod("web")
    assert container_status(pod, "app")["state"] == {"waiting": {"reason": "ContainerCreating"}}
    assert not await cluster.sandboxes(pod)
    await cluster.client.create(CONFIG_MAPS, cluster.namespace, {"metadata": {"name": "cfg"}, "data": {"other": ""}})
    await wait_event(cluster, "web", failed, "configmap references non-existent config key: key")
    await edit_config(cluster, "one")
    await cluster.wait_pod("web", pod_ready, "ready")
    await cluster.wait_words("web", "log", "one")


@pytest.mark.parametrize(
    ("volume", "fault"),
    [
        ({"persistentVolumeClaim": {"claimName": "x"}}, "a local node has no volumes of kind persistentVolumeClaim"),
        ({"hostPath": {"path": "/no/such", "type": "File"}}, 'volume "v": hostPath /no/such is not a File'),
    ],
)
async def test_a_volume_that_a_local_node_cannot_have_is_an_event(cluster: Cluster, volume: Json, fault: str) -> None:
    await cluster.create_pod("web", [container("app")], volumes=[{"name": "v", **volume}])
    await wait_event(cluster, "web", 'MountVolume.SetUp failed for volume "v" : ', fault)


async def test_a_deleted_object_leaves_the_files_and_is_an_event(cluster: Cluster) -> None:
    await create_config(cluster, "one")
    app = container("app", READ_AT_START, volumeMounts=[WHOLE])
    pod = await cluster.run_pod("web", [app], volumes=[VOLUME])
    await cluster.client.delete(CONFIG_MAPS, cluster.namespace, "cfg")
    await touch(cluster, "web")
    await wait_event(cluster, "web", 'MountVolume.SetUp failed for volume "cfg" : configmap "cfg" not found')
    await cluster.stop(container_id(pod, "app"))
    await cluster.wait_words("web", "log", "one", "one")


async def test_a_container_starts_with_what_the_node_knows_while_the_api_server_is_away(cluster: Cluster) -> None:
    await create_config(cluster, "one")
    env = [{"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "cfg", "key": "key"}}}]
    pod = await cluster.run_pod("web", [container("app", f'echo "$KEY" >> /shared/log; {WAITING_SCRIPT}', env=env)])
    await cluster.wait_words("web", "log", "one")
    await cluster.local.api.stop()
    await cluster.stop(container_id(pod, "app"))
    await cluster.wait_words("web", "log", "one", "one")
    await cluster.local.api.start()


async def test_variables_have_any_name_and_any_content(cluster: Cluster) -> None:
    """Since 1.34 kubelet skips no key of a ConfigMap or Secret for its name."""
    secret = {"metadata": {"name": "s"}, "data": {"a.b-c": "/yE="}}
    await cluster.client.create(SECRETS, cluster.namespace, secret)
    app = {"name": "app", "command": ["/usr/bin/env"], "envFrom": [{"secretRef": {"name": "s"}}]}
    await cluster.create_pod("web", [app], restartPolicy="Never")
    pod = await cluster.wait_pod("web", lambda pod: pod["status"]["phase"] == "Succeeded", "Succeeded")
    logs = cluster.local.root / "kubelet" / "logs" / f"{cluster.namespace}_web_{pod['metadata']['uid']}"
    assert b"a.b-c=\xff!\n" in (logs / "app" / "0.log").read_bytes()


async def test_a_pod_that_has_ended_keeps_no_immutable_object(cluster: Cluster) -> None:
    await create_config(cluster, "one", immutable=True)
    done = {"name": "app", "command": ["/bin/true"], "volumeMounts": [WHOLE]}
    await cluster.create_pod("job", [done], volumes=[VOLUME], restartPolicy="Never")
    await cluster.wait_pod("job", lambda pod: pod["status"]["phase"] == "Succeeded", "Succeeded")
    job = await cluster.pod("job")
    async with asyncio.timeout(30):
        while True:
            if all(sandbox.state == pb.SANDBOX_NOTREADY for sandbox in await cluster.sandboxes(job)):
                break
            await asyncio.sleep(0.01)
    await cluster.client.delete(CONFIG_MAPS, cluster.namespace, "cfg")
    await create_config(cluster, "two", immutable=True)
    await cluster.run_pod("web", [container("app", READ_AT_START, volumeMounts=[WHOLE])], volumes=[VOLUME])
    await cluster.wait_words("web", "log", "two")
