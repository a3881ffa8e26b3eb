"""The fence policies refuse a tolerating request in whatever version of the API it comes.

Rules get an object as it was sent when they name its version, and otherwise, by matchPolicy Equivalent,
converted to a version they name. Up to v1beta1 a request's fields stood directly in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from kubernetes_cel import Environment

Json = dict[str, Any]

ROOT = Path(__file__).parents[2]
POLICIES = [
    document
    for document in yaml.safe_load_all((ROOT / "manifests/policies/fence.yaml").read_text())
    if document["kind"] == "ValidatingAdmissionPolicy"
]
FLAT = "v1beta1"


def judged_in(policy: Json, sent: str) -> str:
    """The version in which the policy sees an object."""
    [rule] = policy["spec"]["matchConstraints"]["resourceRules"]
    assert policy["spec"]["matchConstraints"].get("matchPolicy", "Equivalent") == "Equivalent"
    versions = rule["apiVersions"]
    return sent if "*" in versions or sent in versions else versions[0]


def allowed(policy: Json, spec: Json) -> bool:
    """Whether all validations hold for a new object, outside of the exempt namespaces."""
    variables = {v["name"]: v["expression"] for v in policy["spec"]["variables"]}
    variables |= {"exempt": "false", "unchanged": "false"}
    nested = policy["metadata"]["name"].endswith("templates")
    for validation in policy["spec"]["validations"]:
        expression = validation["expression"]
        for name, value in variables.items():
            expression = expression.replace(f"variables.{name}", f"({value})")
        content = {"spec": {"spec": spec} if nested else spec}
        if not Environment.admission().compile(expression).run({"object": content}).unwrap():
            return False
    return True


def spec(version: str, **request: Any) -> Json:
    one = {"name": "r", **request} if version == FLAT else {"name": "r", "exactly": request}
    return {"devices": {"requests": [one]}}


@pytest.mark.parametrize("sent", ["v1", "v1beta2", FLAT])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy["metadata"]["name"])
def test_no_version_of_the_api_opens_the_fence(policy: Json, sent: str) -> None:
    judged = judged_in(policy, sent)
    everything = [{"operator": "Exists"}]

    assert not allowed(policy, spec(judged, deviceClassName="c", tolerations=everything))
    assert allowed(policy, spec(judged, deviceClassName="c", tolerations=everything, adminAccess=True))
    assert allowed(
        policy, spec(judged, deviceClassName="c", tolerations=[{"key": "a", "operator": "Exists"}])
    )
