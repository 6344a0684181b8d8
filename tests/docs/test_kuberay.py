"""The manifest of the Ray guide is one that KubeRay and Kubernetes take.

KubeRay's custom resource definitions are in no package that we could install, so the fields that
the manifest uses are described here by hand, after KubeRay's Go types (`ray-operator/apis/ray/v1`).
`rayStartParams` is required as it was before KubeRay 1.4. What is in a pod is compared with the
models of Kubernetes' own client.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from envweave.examples.train_lineworld_pg import main

MANIFEST = Path(__file__).parents[2] / "docs/assets/kuberay.yaml"


def fields(required: str = "", **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


COUNT = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
TEXT = {"type": "string", "minLength": 1}
PARAMS = {"type": "object", "additionalProperties": {"type": "string"}}
RAY_JOB = fields(
    "apiVersion kind metadata spec",
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayJob"},
    metadata=fields(
        "name", name={"type": "string", "pattern": "^[a-z]([-a-z0-9]{0,45}[a-z0-9])?$"}
    ),
    spec=fields(
        "entrypoint rayClusterSpec",
        entrypoint=TEXT,
        shutdownAfterJobFinishes={"type": "boolean"},
        ttlSecondsAfterFinished=COUNT,
        rayClusterSpec=fields(
            "headGroupSpec",
            rayVersion=TEXT,
            headGroupSpec=fields(
                "rayStartParams template", rayStartParams=PARAMS, template={"type": "object"}
            ),
            workerGroupSpecs={
                "type": "array",
                "items": fields(
                    "groupName minReplicas maxReplicas rayStartParams template",
                    groupName=TEXT,
                    replicas=COUNT,
                    minReplicas=COUNT,
                    maxReplicas=COUNT,
                    rayStartParams=PARAMS,
                    template={"type": "object"},
                ),
            },
        ),
    ),
)


@pytest.fixture
def manifest() -> Any:
    return yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))


def pod_templates(manifest: Any) -> list[Any]:
    cluster = manifest["spec"]["rayClusterSpec"]
    return [cluster["headGroupSpec"]["template"]] + [
        group["template"] for group in cluster["workerGroupSpecs"]
    ]


def test_the_manifest_is_a_ray_job(manifest: Any) -> None:
    jsonschema.validate(manifest, RAY_JOB)


def test_a_misspelled_field_would_be_found(manifest: Any) -> None:
    manifest["spec"]["rayClusterSpec"]["headGroupSpecs"] = {}

    with pytest.raises(jsonschema.ValidationError, match="headGroupSpecs"):
        jsonschema.validate(manifest, RAY_JOB)


def check_model(kind: str, value: Any, path: str) -> None:
    """Check that a value has the fields, and the types, of one of Kubernetes' models."""
    from kubernetes import client

    if (inner := re.fullmatch(r"[Ll]ist\[(.+)\]", kind)) is not None:
        assert isinstance(value, list), path
        for i, one in enumerate(value):
            check_model(inner[1], one, f"{path}[{i}]")
    elif kind.lower().startswith("dict"):
        assert isinstance(value, dict), path
        assert all(isinstance(one, str) for one in value.values()), path
    elif kind.startswith("V1"):
        model = getattr(client, kind)
        known = {name: attribute for attribute, name in model.attribute_map.items()}
        for name, one in value.items():
            assert name in known, f"{path}.{name} is not a field of {kind}"
            check_model(model.openapi_types[known[name]], one, f"{path}.{name}")
    else:
        assert isinstance(value, {"str": str, "int": int, "bool": bool}[kind]), path


def test_its_pods_have_the_fields_of_kubernetes(manifest: Any) -> None:
    pytest.importorskip("kubernetes")

    for template in pod_templates(manifest):
        check_model("V1PodTemplateSpec", template, "template")
        assert len(template["spec"]["containers"]) == 1


def test_its_command_is_an_envweave_command(
    manifest: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, flag, module, *options = shlex.split(manifest["spec"]["entrypoint"])

    code = main([*options, "--backend", "inproc", "--episodes", "4", "--num-envs", "4",
                 "--evaluation-episodes", "4", "--run-dir", str(tmp_path / "run")])  # fmt: skip

    assert (program, flag, module) == ("python", "-m", main.__module__)
    assert options[:2] == ["--backend", "ray"]
    assert code == 0
