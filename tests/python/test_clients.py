"""The Python client, unmodified, against the API server that KUBECONFIG names."""

import unittest

from kubernetes import client, config, dynamic, watch
from kubernetes.client.exceptions import ApiException

NAMESPACE = "default"
PATIENCE = 30


class Clients(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        config.load_kube_config()
        cls.core = client.CoreV1Api()

    def refused(self, status, call, *arguments, **more):
        with self.assertRaises(ApiException) as raised:
            call(*arguments, **more)
        self.assertEqual(raised.exception.status, status)
        return raised.exception

    def test_objects_are_made_read_changed_and_deleted(self):
        made = self.core.create_namespaced_config_map(
            NAMESPACE, client.V1ConfigMap(metadata=client.V1ObjectMeta(generate_name="py-"), data={"a": "1"})
        )
        name = made.metadata.name
        patched = self.core.patch_namespaced_config_map(name, NAMESPACE, {"data": {"b": "2"}})
        self.assertEqual(patched.data, {"a": "1", "b": "2"})
        self.refused(409, self.core.replace_namespaced_config_map, name, NAMESPACE, made)
        listed = self.core.list_namespaced_config_map(NAMESPACE, field_selector=f"metadata.name={name}")
        self.assertEqual([of.metadata.name for of in listed.items], [name])
        self.core.delete_namespaced_config_map(name, NAMESPACE)
        self.refused(404, self.core.read_namespaced_config_map, name, NAMESPACE)

    def test_pages_join_to_the_whole_list(self):
        for number in range(7):
            metadata = client.V1ObjectMeta(name=f"page-{number}", labels={"test": "pages"})
            self.core.create_namespaced_config_map(NAMESPACE, client.V1ConfigMap(metadata=metadata))
        names, token = [], None
        while True:
            page = self.core.list_namespaced_config_map(
                NAMESPACE, label_selector="test=pages", limit=3, _continue=token
            )
            names += [of.metadata.name for of in page.items]
            token = page.metadata._continue
            if not token:
                break
        self.assertEqual(names, [f"page-{number}" for number in range(7)])
        self.core.delete_collection_namespaced_config_map(NAMESPACE, label_selector="test=pages")

    def test_a_watch_tells_what_happens_after_its_list(self):
        listed = self.core.list_namespaced_config_map(NAMESPACE)
        metadata = client.V1ObjectMeta(name="watched")
        self.core.create_namespaced_config_map(NAMESPACE, client.V1ConfigMap(metadata=metadata))
        self.core.patch_namespaced_config_map("watched", NAMESPACE, {"data": {"a": "1"}})
        self.core.delete_namespaced_config_map("watched", NAMESPACE)
        seen = []
        stream = watch.Watch()
        for event in stream.stream(
            self.core.list_namespaced_config_map,
            NAMESPACE,
            field_selector="metadata.name=watched",
            resource_version=listed.metadata.resource_version,
            timeout_seconds=PATIENCE,
        ):
            seen.append(event["type"])
            if event["type"] == "DELETED":
                stream.stop()
        self.assertEqual(seen, ["ADDED", "MODIFIED", "DELETED"])

    def test_what_is_wrong_is_told_with_its_field(self):
        bad = client.V1Service(
            metadata=client.V1ObjectMeta(name="bad"), spec=client.V1ServiceSpec(ports=[client.V1ServicePort(port=0)])
        )
        told = self.refused(422, self.core.create_namespaced_service, NAMESPACE, bad)
        self.assertIn("spec.ports[0].port", told.body)

    def test_the_dynamic_client_finds_kinds_and_applies(self):
        dynamics = dynamic.DynamicClient(client.ApiClient())
        deployments = dynamics.resources.get(api_version="apps/v1", kind="Deployment")
        body = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "py"},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": {"app": "py"}},
                "template": {
                    "metadata": {"labels": {"app": "py"}},
                    "spec": {"containers": [{"name": "c", "image": "i"}]},
                },
            },
        }
        applied = deployments.server_side_apply(body=body, namespace=NAMESPACE, field_manager="py")
        again = deployments.server_side_apply(body=body, namespace=NAMESPACE, field_manager="py")
        self.assertEqual(applied.metadata.resourceVersion, again.metadata.resourceVersion)
        deployments.delete(name="py", namespace=NAMESPACE)


if __name__ == "__main__":
    unittest.main()
