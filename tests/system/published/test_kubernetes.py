"""Kubernetes files: valid where they can be checked without a cluster, and in step with Stretto's own names.

Schemas cover the fields that are used, closed to others, so a misspelled field fails. Where `helm` is
installed the chart is rendered by it as well; nothing is applied to a cluster.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from stretto.settings import ServerSettings
from tests.system.published.go_templates import render

FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "kubernetes"
CHART = FOLDER / "chart"
HELM = shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm")
TEXT, COUNT = {"type": "string", "minLength": 1}, {"type": "integer", "minimum": 1}
LABELS = {"type": "object", "additionalProperties": TEXT, "minProperties": 1}


def closed(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    """An object with these fields and no others."""
    return {
        "type": "object",
        "properties": required | (optional or {}),
        "required": list(required),
        "additionalProperties": False,
    }


def listed(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item, "minItems": 1}


PROBE = closed(
    {"httpGet": closed({"path": {"enum": ["/readyz", "/livez"]}, "port": {"const": "http"}})},
    {"periodSeconds": COUNT, "timeoutSeconds": COUNT, "failureThreshold": COUNT},
)
SECRET_KEY = closed({"secretKeyRef": closed({"name": TEXT, "key": TEXT})})
CONTAINER = closed(
    {
        "name": TEXT,
        "image": TEXT,
        "env": listed(closed({"name": TEXT}, {"value": TEXT, "valueFrom": SECRET_KEY})),
    },
    {
        "args": listed(TEXT),
        "ports": listed(closed({"name": TEXT, "containerPort": COUNT})),
        "startupProbe": PROBE,
        "readinessProbe": PROBE,
        "livenessProbe": PROBE,
        "resources": closed({"requests": LABELS, "limits": LABELS}),
        "volumeMounts": listed(closed({"name": TEXT, "mountPath": TEXT}, {"readOnly": {"type": "boolean"}})),
    },
)
VOLUME = closed(
    {"name": TEXT},
    {"emptyDir": {"type": "object"}, "secret": closed({"secretName": TEXT, "defaultMode": COUNT})},
)
POD = closed(
    {"containers": listed(CONTAINER), "volumes": listed(VOLUME)},
    {"terminationGracePeriodSeconds": COUNT, "securityContext": {"type": "object"}},
)
SELECTOR = closed({"matchLabels": LABELS})
RAY_GROUP = {
    "rayStartParams": {"type": "object", "additionalProperties": TEXT},
    "template": closed({"spec": POD}, {"metadata": closed({"labels": LABELS})}),
}
SPECS = {
    ("apps/v1", "Deployment"): closed(
        {
            "replicas": COUNT,
            "selector": SELECTOR,
            "template": closed({"metadata": closed({"labels": LABELS}), "spec": POD}),
        }
    ),
    ("v1", "Service"): closed(
        {
            "selector": LABELS,
            "ports": listed(closed({"name": TEXT, "port": COUNT, "targetPort": {"const": "http"}})),
        }
    ),
    ("inference.networking.k8s.io/v1", "InferencePool"): closed(
        {
            "selector": SELECTOR,
            "targetPorts": listed(closed({"number": COUNT})),
            "endpointPickerRef": closed(
                {"kind": {"const": "Service"}, "name": TEXT, "port": closed({"number": COUNT})},
                {"failureMode": {"enum": ["FailOpen", "FailClose"]}},
            ),
        }
    ),
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): closed(
        {
            "parentRefs": listed(closed({"name": TEXT})),
            "rules": listed(
                closed(
                    {
                        "matches": listed(
                            closed({"path": closed({"type": {"const": "PathPrefix"}, "value": TEXT})})
                        ),
                        "backendRefs": listed(
                            closed(
                                {
                                    "group": {"const": "inference.networking.k8s.io"},
                                    "kind": {"const": "InferencePool"},
                                    "name": TEXT,
                                }
                            )
                        ),
                    },
                    {"timeouts": closed({"request": TEXT})},
                )
            ),
        }
    ),
    ("ray.io/v1", "RayService"): closed(
        {
            "serveConfigV2": TEXT,
            "rayClusterConfig": closed(
                {
                    "rayVersion": TEXT,
                    "headGroupSpec": closed(RAY_GROUP),
                    "workerGroupSpecs": listed(
                        closed(
                            RAY_GROUP
                            | {
                                "groupName": TEXT,
                                "replicas": COUNT,
                                "minReplicas": COUNT,
                                "maxReplicas": COUNT,
                            }
                        )
                    ),
                }
            ),
        }
    ),
}


def check(documents: list[dict[str, Any]]) -> list[str]:
    for document in documents:
        spec = SPECS[document["apiVersion"], document["kind"]]
        metadata = closed({"name": TEXT}, {"labels": LABELS})
        known = closed({"apiVersion": TEXT, "kind": TEXT, "metadata": metadata, "spec": spec})
        jsonschema_rs.validate(known, document)
    return [document["kind"] for document in documents]


def loaded(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


def chart(**values: Any) -> list[dict[str, Any]]:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    merged = {
        name: content | values.get(name, {}) if isinstance(content, dict) else values.get(name, content)
        for name, content in defaults.items()
    }
    context = {"Values": merged, "Release": {"Name": "demo"}}
    texts = [
        render(path.read_text(encoding="utf-8"), context) for path in sorted(CHART.glob("templates/*.yaml"))
    ]
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("stretto.yaml", ["Deployment", "Service"]),
        ("inference-pool.yaml", ["InferencePool", "HTTPRoute"]),
        ("rayservice.yaml", ["RayService", "Service"]),
    ],
)
def test_files_have_known_fields_only(name, kinds):
    assert check(loaded(name)) == kinds


def test_schemas_notice_a_misspelled_field():
    (deployment, _) = loaded("stretto.yaml")
    deployment["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(jsonschema_rs.ValidationError, match="readynessProbe"):
        check([deployment])


def containers(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    pods = [d["spec"]["template"]["spec"] for d in documents if d["kind"] == "Deployment"]
    return [container for pod in pods for container in pod["containers"]]


@pytest.mark.parametrize("documents", [loaded("stretto.yaml"), chart(inferencePool={"enabled": True})])
def test_variables_are_settings(documents):
    (container,) = containers(documents)
    names = {variable["name"] for variable in container["env"]}
    assert {name.removeprefix("STRETTO_").lower() for name in names} <= set(ServerSettings.model_fields)
    assert {"STRETTO_METRICS_COMPAT", "STRETTO_METRICS_PUBLIC"} <= names
    assert "STRETTO_API_KEY" in names  # without it the server would refuse to listen on other addresses


@pytest.mark.parametrize("documents", [loaded("stretto.yaml"), chart()])
def test_a_drain_has_the_time_that_it_may_take(documents):
    (deployment,) = (d for d in documents if d["kind"] == "Deployment")
    grace_s = deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace_s > ServerSettings().drain_timeout_s


def test_the_pool_selects_the_pods_of_the_deployment():
    deployment, service = loaded("stretto.yaml")
    pool, route = loaded("inference-pool.yaml")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert pool["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == labels
    port = deployment["spec"]["template"]["spec"]["containers"][0]["ports"][0]["containerPort"]
    assert pool["spec"]["targetPorts"] == [{"number": port}]
    assert route["spec"]["rules"][0]["backendRefs"][0]["name"] == pool["metadata"]["name"]


def test_the_ray_service_names_our_application():
    service, _ = loaded("rayservice.yaml")
    (application,) = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    assert application["import_path"] == "stretto.cluster:app"
    mounts = service["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]
    folder = mounts["volumeMounts"][0]["mountPath"]
    assert Path(application["args"]["token_file"]).parent == Path(folder)


def test_a_service_reaches_the_port_of_the_gates():
    ray, service = loaded("rayservice.yaml")
    (group,) = ray["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    head = ray["spec"]["rayClusterConfig"]["headGroupSpec"]
    (container,) = group["template"]["spec"]["containers"]
    (application,) = yaml.safe_load(ray["spec"]["serveConfigV2"])["applications"]
    assert service["spec"]["selector"] == group["template"]["metadata"]["labels"]
    (port,) = container["ports"]
    assert (
        port["name"]
        == service["spec"]["ports"][0]["targetPort"]
        == container["readinessProbe"]["httpGet"]["port"]
    )
    assert port["containerPort"] == application["args"]["settings"]["server.port"]
    assert head["rayStartParams"]["num-cpus"] == "0"  # nothing of ours runs in a pod that the Service misses


@pytest.mark.parametrize(
    ("values", "kinds"),
    [
        ({}, ["Deployment", "Service"]),
        ({"inferencePool": {"enabled": True}}, ["Deployment", "InferencePool", "HTTPRoute", "Service"]),
    ],
)
def test_the_chart_renders_valid_files(values, kinds):
    assert check(chart(**values)) == kinds


def test_values_reach_the_files():
    documents = chart(replicas=5, model="qwen", settings={"STRETTO_N_SEQ_MAX": "8"}, drainSeconds=90)
    (deployment,) = (d for d in documents if d["kind"] == "Deployment")
    (container,) = containers(documents)
    assert deployment["spec"]["replicas"] == 5
    assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 120
    assert container["args"] == ["serve", "qwen"]
    assert {"name": "STRETTO_N_SEQ_MAX", "value": "8"} in container["env"]
    assert {"name": "STRETTO_DRAIN_TIMEOUT_S", "value": "90"} in container["env"]


@pytest.mark.skipif(HELM is None, reason="HELM IS NOT INSTALLED: the chart is not rendered by it")
@pytest.mark.parametrize("enabled", ["true", "false"])
def test_helm_renders_the_same_as_the_tests(enabled):
    command = [HELM, "template", "demo", str(CHART), "--set", f"inferencePool.enabled={enabled}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    documents = [document for document in yaml.safe_load_all(done.stdout) if document]
    ours = chart(inferencePool={"enabled": enabled == "true"})
    order = lambda document: document["kind"]  # noqa: E731
    assert sorted(documents, key=order) == sorted(ours, key=order)
