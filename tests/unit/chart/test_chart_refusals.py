"""Values that cannot be: helm says which, and why."""

from __future__ import annotations

import re

import pytest
from charts import KUBE_VERSION, Helm

# Value, what it is set to (JSON), and what helm's message has.
SCHEMA: list[tuple[str, str, str]] = [
    ("unknown", "1", "additional properties 'unknown' not allowed"),
    ("operator.replica", "1", "/operator': additional properties 'replica' not allowed"),
    ("operator.seconds.graces", "1", "/operator/seconds': additional properties 'graces' not allowed"),
    ("agent.policy.secret", '"x"', "/agent/policy': additional properties 'secret' not allowed"),
    ("agent.image.name", '"x"', "/agent/image': additional properties 'name' not allowed"),
    ("operator.affinity.podAfinity", "{}", "/operator/affinity': additional properties 'podAfinity' not allowed"),
    ("agent.resources.requests.gpu", "1", "/agent/resources/requests': additional properties 'gpu' not allowed"),
    ("fullnameOverride", '"Not-Lower"', "/fullnameOverride': 'Not-Lower' does not match"),
    ("commonLabels", '{"a": 1}', "/commonLabels/a': got number, want string"),
    ("commonLabels", '{"a": "b c"}', "/commonLabels/a': 'b c' does not match"),
    ("watchNamespaces", '"team-a"', "/watchNamespaces': got string, want array"),
    ("watchNamespaces", '["Team"]', "/watchNamespaces/0': 'Team' does not match"),
    ("watchNamespaces", '[""]', "/watchNamespaces/0': '' does not match"),
    ("watchNamespaces", '["a", "a"]', "/watchNamespaces': items at 0 and 1 are equal"),
    ("image.registry", '"https://registry"', "/image/registry': 'https://registry' does not match"),
    ("image.tag", "1.5", "/image/tag': got number, want string"),
    ("image.tag", '"a b"', "/image/tag': 'a b' does not match"),
    ("image.pullPolicy", '"Sometimes"', "/image/pullPolicy': value must be one of 'Always', 'IfNotPresent', 'Never'"),
    ("image.pullSecrets", '[{"name": "x"}]', "/image/pullSecrets/0': got object, want string"),
    ("crds.install", '"yes"', "/crds/install': got string, want boolean"),
    ("securityContext.runAsUser", "0", "/securityContext/runAsUser': minimum: got 0, want 1"),
    ("operator.replicas", '"two"', "/operator/replicas': got string, want integer"),
    ("operator.replicas", "1.5", "/operator/replicas': got number, want integer"),
    ("operator.leaseSeconds", "2", "/operator/leaseSeconds': minimum: got 2, want 3"),
    ("operator.gpu.resource", '"gpu"', "/operator/gpu/resource': 'gpu' does not match"),
    ("operator.gpu.toleratedTaints", "[]", "/operator/gpu/toleratedTaints': minItems: got 0, want 1"),
    ("operator.seconds.promise", "0", "/operator/seconds/promise': exclusiveMinimum: got 0, want 0"),
    ("operator.seconds.grace", "-1", "/operator/seconds/grace': minimum: got -1, want 0"),
    ("operator.log.level", '"loud"', "/operator/log/level': value must be one of"),
    ("operator.image.digest", '"sha256:1"', "/operator/image/digest': 'sha256:1' does not match"),
    ("operator.resources.limits.memory", '"1 GB"', "/operator/resources/limits/memory': '1 GB' does not match"),
    ("operator.tolerations", '[{"efect": "x"}]', "additional properties 'efect' not allowed"),
    ("operator.podAnnotations", '{"a": 1}', "/operator/podAnnotations/a': got number, want string"),
    ("agent.url", '"agent:8080"', "/agent/url': 'agent:8080' does not match"),
    ("policy.settings.url", '"http://policies,x"', "/policy/settings/url': 'http://policies,x' does not match"),
    ("policy.file.path", '"policy.pt"', "/policy/file/path': 'policy.pt' does not match"),
    ("agent.policy.source", '"Secret"', "/agent/policy/source': value must be one of 'BuiltIn'"),
    ("agent.policy.imagePath", '"policy"', "/agent/policy/imagePath': 'policy' does not match"),
    ("agent.outcomes.limitMiB", "0", "/agent/outcomes/limitMiB': minimum: got 0, want 1"),
    ("agent.exploration", "1.5", "/agent/exploration': maximum: got 1.5, want 1"),
    ("agent.exploration", '"0.1"', "/agent/exploration': got string, want number"),
    ("agent.policy.subPath", '"/etc"', "/agent/policy/subPath': '/etc' does not match"),
    ("networkPolicy.metricsFrom", '[{"namespace": "x"}]', "additional properties 'namespace' not allowed"),
    ("networkPolicy.metricsFrom", "[{}]", "minProperties: got 0, want 1"),
    ("serviceMonitor.interval", '"often"', "/serviceMonitor/interval': 'often' does not match"),
    ("serviceMonitor.interval", '"30s1m"', "/serviceMonitor/interval': '30s1m' does not match"),
    ("podMonitor.interval", '"15"', "/podMonitor/interval': '15' does not match"),
    ("podMonitor.interval", '""', "/podMonitor/interval': minLength: got 0, want 1"),
    ("dashboards.labels", '{"a": true}', "/dashboards/labels/a': got boolean, want string"),
]

TEMPLATES: list[tuple[dict[str, str], str]] = [
    (
        {"agent.policy.source": '"ConfigMap"'},
        "agent.policy.configMap is empty, and agent.policy.source is ConfigMap: name it",
    ),
    (
        {"agent.policy.source": '"PersistentVolumeClaim"'},
        "agent.policy.claim is empty, and agent.policy.source is PersistentVolumeClaim: name it",
    ),
    ({"agent.policy.source": '"Image"'}, "agent.policy.image is empty, and agent.policy.source is Image: name it"),
    (
        {"agent.policy.claim": '"mine"'},
        'agent.policy.claim is "mine", and agent.policy.source is BuiltIn: set the source to PersistentVolumeClaim',
    ),
    (
        {"agent.outcomes.claim": '"kept"'},
        'agent.outcomes.claim is "kept", and agent.outcomes.enabled is false: enable it, or leave the claim out',
    ),
    ({"agent.policy.subPath": '"a"'}, 'agent.policy.subPath is "a", and agent.policy.source is BuiltIn'),
    (
        {"agent.autoscaling": '{"enabled": true, "minReplicas": 5}'},
        "agent.autoscaling.minReplicas is 5, more than agent.autoscaling.maxReplicas, which is 4",
    ),
    ({"operator.audit.claim": '"kept"'}, 'operator.audit.claim is "kept", and operator.audit.enabled is false'),
    ({"policy.name": '"learned"'}, "policy.name is learned, and policy.file.source is None: name a ConfigMap"),
    (
        {"policy.file": '{"source": "Secret", "name": "mine"}'},
        "policy.file.source is Secret, and policy.name is fair: only learned has a file",
    ),
    (
        {"policy.name": '"learned"', "policy.file.source": '"ConfigMap"'},
        "policy.file.name is empty, and policy.file.source is ConfigMap: name it",
    ),
    ({"policy.file.name": '"mine"'}, 'policy.file.name is "mine", and policy.file.source is None: set the source'),
    ({"networkPolicy.workers": "true"}, "networkPolicy.workers is true, and watchNamespaces is empty: name the"),
    (
        {"operator.seconds.restart": "61"},
        "operator.seconds.restart is 61, more than operator.seconds.maxRestart, which is 60",
    ),
    (
        {"operator.serviceAccount.create": "false"},
        "operator.serviceAccount.name is empty, and operator.serviceAccount.create is false: name the one",
    ),
]


@pytest.mark.parametrize(("name", "value", "message"), SCHEMA, ids=[f"{name}={value}" for name, value, _ in SCHEMA])
def test_the_schema_refuses(helm: Helm, name: str, value: str, message: str) -> None:
    said = helm.refuses(sets={name: value})
    assert message in said
    assert re.search(r"values don't meet the specifications of the schema", said)


@pytest.mark.parametrize(("values", "message"), TEMPLATES, ids=[next(iter(values)) for values, _ in TEMPLATES])
def test_what_types_cannot_say(helm: Helm, values: dict[str, str], message: str) -> None:
    assert message in helm.refuses(sets=values)


@pytest.mark.parametrize("name", ["2nd-gpu", "team.a"])
def test_a_release_whose_name_cannot_begin_that_of_a_service(helm: Helm, name: str) -> None:
    command = ("template", name, "charts/espalier", f"--kube-version={KUBE_VERSION}")
    assert "fullnameOverride is empty, and the release's name makes" in helm(*command, check=False)
    assert "kind: Service" in helm(*command, "--set=fullnameOverride=espalier")


def test_a_cluster_that_is_too_old(helm: Helm) -> None:
    said = helm("template", "espalier", "charts/espalier", "--kube-version=1.29", check=False)
    assert "requires kubeVersion: >=1.30.0-0" in said
