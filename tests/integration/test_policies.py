"""The admission policies that ship, on a real API server, as real ServiceAccounts.

The users here may do everything in their namespace that RBAC can give, so whatever is refused is refused by
policy.
"""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import local
from e2e.api import ApiClient
from e2e.cluster import Cluster, wait_for
from e2e.errors import ApiError
from e2e.fixtures import CRDS

ROOT = Path(__file__).parents[2]
SYSTEM = "sharing-affinity-system"
KEY = "sharingaffinity.dev/managed"
RECORD = "sharingaffinity.dev/allocation"
MERGE = "application/merge-patch+json"

Object = dict[str, Any]

pytestmark = pytest.mark.integration

OPENS_THE_FENCE: list[Object] = [
    {"key": KEY, "operator": "Exists", "effect": "NoSchedule"},
    {"key": KEY, "operator": "Exists"},
    {"key": KEY, "operator": "Equal", "value": "x"},
    {"operator": "Exists"},
    {"operator": "Exists", "effect": "NoSchedule"},
]
HARMLESS: list[Object] = [
    {"key": "example.com/maintenance", "operator": "Exists"},
    {"key": KEY, "operator": "Exists", "effect": "NoExecute"},
    {"operator": "Exists", "effect": "NoExecute"},
]


@pytest.fixture(scope="module")
def policies(control_plane: Cluster) -> Cluster:
    enforce(control_plane)
    return control_plane


def enforce(cluster: Cluster) -> None:
    """Apply what ships, and wait until the policies refuse."""
    cluster.kubectl("apply", "--server-side", "-k", str(ROOT / "manifests/overlays/local"))
    probe = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "probe", "namespace": "default"},
        "spec": {"metadata": {"annotations": {RECORD: "x"}}, **claim()},
    }
    path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates?dryRun=All"

    def enforced() -> bool:
        try:
            cluster.request("POST", path, probe)
        except ApiError as error:
            return error.status == 403
        return False

    wait_for("policies in force", enforced)


class User:
    """A ServiceAccount that is admin of one namespace."""

    def __init__(self, cluster: Cluster, namespace: str, name: str = "user") -> None:
        self.namespace = namespace
        prefix = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        cluster.request("POST", prefix, {"metadata": {"name": name}})
        cluster.apply(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRole",
                "metadata": {"name": "policy-test-user"},
                "rules": [
                    {
                        "apiGroups": ["resource.k8s.io"],
                        "resources": [
                            "resourceclaims",
                            "resourceclaims/status",
                            "resourceclaims/binding",
                            "resourceclaimtemplates",
                        ],
                        "verbs": ["*"],
                    }
                ],
            },
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": f"policy-test-{namespace}"},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": "policy-test-user",
                },
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
            },
        )
        self.api = ApiClient(cluster.service_account_kubeconfig(namespace, name))

    def path(self, plural: str, name: str = "", subresource: str = "") -> str:
        base = f"/apis/resource.k8s.io/v1/namespaces/{self.namespace}/{plural}"
        return "/".join(filter(None, (base, name, subresource)))

    def create(self, kind: str, spec: Object, name: str, **metadata: Any) -> Object:
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": name, **metadata},
            "spec": spec,
        }
        stored: Object = self.api.request("POST", self.path(kind.lower() + "s"), body)
        return stored


@pytest.fixture
def user(policies: Cluster, namespace: str) -> Iterator[User]:
    yield User(policies, namespace)
    policies.request(
        "DELETE", f"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/policy-test-{namespace}"
    )


def claim(*tolerations: Object, admin: bool = False, alternative: bool = False) -> Object:
    """The spec of a claim (``{"spec": ...}`` shaped for a template): one request with these tolerations."""
    exactly: Object = {"deviceClassName": "shared-nic.sharingaffinity.dev"}
    if tolerations:
        exactly["tolerations"] = [dict(toleration) for toleration in tolerations]
    if admin:
        exactly["adminAccess"] = True
    request: Object = {"name": "nic"}
    if alternative:
        plain = {"deviceClassName": "shared-nic.sharingaffinity.dev", "name": "plain"}
        request["firstAvailable"] = [plain, {"name": "other", **exactly}]
    else:
        request["exactly"] = exactly
    return {"spec": {"devices": {"requests": [request]}}}


def refused(call: Any, *fragments: str) -> None:
    with pytest.raises(ApiError) as caught:
        call()
    assert caught.value.status == 403, str(caught.value)
    assert "ValidatingAdmissionPolicy" in caught.value.message
    for fragment in fragments:
        assert fragment in caught.value.message


@pytest.mark.parametrize("alternative", [False, True], ids=["exactly", "firstAvailable"])
@pytest.mark.parametrize("toleration", OPENS_THE_FENCE, ids=lambda t: "-".join(t.values()).replace("/", "_"))
def test_what_opens_the_fence_is_refused(user: User, toleration: Object, alternative: bool) -> None:
    spec = claim({"key": "example.com/x", "operator": "Exists"}, toleration, alternative=alternative)

    refused(lambda: user.create("ResourceClaim", spec["spec"], "c"), KEY, "sharing-affinity operator alone")
    refused(lambda: user.create("ResourceClaimTemplate", spec, "t"), KEY)


def test_older_versions_open_it_neither() -> None:
    """In v1beta1 a request's tolerations stand beside its name."""
    older = ("v1beta1", "v1beta2")
    served = ",".join(f"resource.k8s.io/{version}=true" for version in older)
    cluster = local.up(local.Options(name=f"pytest-beta-{os.getpid()}", nodes=0, runtime_config=served))
    try:
        cluster.apply(*sorted(CRDS.glob("sharingaffinity.dev_*.yaml")))
        enforce(cluster)
        for version, toleration in itertools.product(older, OPENS_THE_FENCE + HARMLESS):
            spec = claim(toleration)["spec"]
            if version == "v1beta1":
                spec["devices"]["requests"] = [
                    {"name": "nic", **r["exactly"]} for r in spec["devices"]["requests"]
                ]
            for kind, content in (("ResourceClaim", spec), ("ResourceClaimTemplate", {"spec": spec})):
                path = f"/apis/resource.k8s.io/{version}/namespaces/default/{kind.lower()}s?dryRun=All"
                body = {"metadata": {"generateName": "c-"}, "spec": content}
                if toleration in HARMLESS:
                    cluster.request("POST", path, body)
                else:
                    refused(lambda path=path, body=body: cluster.request("POST", path, body), KEY)
    finally:
        cluster.down()


@pytest.mark.parametrize("alternative", [False, True], ids=["exactly", "firstAvailable"])
def test_other_tolerations_are_nobodys_business(user: User, alternative: bool) -> None:
    spec = claim(*HARMLESS, alternative=alternative)

    user.create("ResourceClaim", spec["spec"], "c")
    user.create("ResourceClaimTemplate", spec, "t")


def test_the_second_request_is_looked_at_as_well(user: User) -> None:
    spec = claim()
    spec["spec"]["devices"]["requests"].append(
        {"name": "b", "exactly": {"deviceClassName": "x.example.com", "tolerations": [OPENS_THE_FENCE[3]]}}
    )

    refused(lambda: user.create("ResourceClaim", spec["spec"], "c"))


def test_admin_access_may_tolerate_anything(policies: Cluster, user: User) -> None:
    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    policies.request("PATCH", f"/api/v1/namespaces/{user.namespace}", label, content_type=MERGE)
    spec = claim(OPENS_THE_FENCE[3], admin=True)

    user.create("ResourceClaim", spec["spec"], "c")
    user.create("ResourceClaimTemplate", spec, "t")


def test_an_exempt_namespace(policies: Cluster, user: User) -> None:
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/sharing-affinity-fence-claims"
    spec = claim(OPENS_THE_FENCE[0])
    refused(lambda: user.create("ResourceClaim", spec["spec"], "c"))
    stored = policies.request("GET", path)["spec"]["variables"]
    exempt = {"name": "exemptNamespaces", "expression": f"'kube-system, {user.namespace}'"}
    changed = [exempt if variable["name"] == exempt["name"] else variable for variable in stored]
    try:
        policies.request("PATCH", path, {"spec": {"variables": changed}}, content_type=MERGE)
        numbers = itertools.count()

        def accepted() -> bool:
            try:
                user.create("ResourceClaim", spec["spec"], f"c{next(numbers)}")
            except ApiError:
                return False
            return True

        wait_for("the exemption to be seen", accepted)
    finally:
        policies.request("PATCH", path, {"spec": {"variables": stored}}, content_type=MERGE)


def test_policies_need_no_object_that_could_be_missing(policies: Cluster) -> None:
    """Whoever deletes the operator's namespace must not block every claim of the cluster."""
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    stored = {policy["metadata"]["name"]: policy["spec"] for policy in policies.request("GET", path)["items"]}
    ours = {name: spec for name, spec in stored.items() if name.startswith("sharing-affinity-")}
    assert len(ours) == 4
    assert not [name for name, spec in ours.items() if spec.get("paramKind")]


def test_an_older_object_that_tolerates_can_still_be_changed_otherwise(policies: Cluster, user: User) -> None:
    """The claim was there before the policy; its finalizer must come and go, or it could never be deleted."""
    name = "sharing-affinity-fence-claims"
    path = f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/{name}"
    binding = policies.request("GET", path)
    policies.request("DELETE", path)
    spec = claim(OPENS_THE_FENCE[3])["spec"]
    try:

        def created() -> bool:
            try:
                user.create("ResourceClaim", spec, "old")
            except ApiError:
                return False
            return True

        wait_for("the policy to be off", created)
    finally:
        for field in ("resourceVersion", "uid", "managedFields", "creationTimestamp", "generation"):
            binding["metadata"].pop(field, None)
        policies.request("POST", path.rpartition("/")[0], binding)
    numbers = itertools.count()

    def enforced() -> bool:
        try:
            user.create("ResourceClaim", spec, f"new{next(numbers)}")
        except ApiError:
            return True
        return False

    wait_for("the policy to be on again", enforced)

    target = user.path("resourceclaims", "old")
    user.api.request("PATCH", target, {"metadata": {"finalizers": ["example.com/a"]}}, content_type=MERGE)
    user.api.request("PATCH", target, {"metadata": {"finalizers": None}}, content_type=MERGE)
    user.api.request("DELETE", target)


@pytest.mark.parametrize("key", [RECORD, "sharingaffinity.dev/anything"])
def test_only_the_operator_writes_its_annotations(policies: Cluster, user: User, key: str) -> None:
    operator = ApiClient(policies.service_account_kubeconfig(SYSTEM, "sharing-affinity-operator"))
    target = user.path("resourceclaims", "c")
    ours = {"metadata": {"annotations": {key: "operator"}}}

    refused(
        lambda: user.create("ResourceClaim", claim()["spec"], "born", annotations={key: "user"}),
        "written by the sharing-affinity operator",
    )
    user.create("ResourceClaim", claim()["spec"], "c", annotations={"example.com/own": "fine"})
    refused(lambda: user.api.request("PATCH", target, ours, content_type=MERGE))
    operator.request("PATCH", target, ours, content_type=MERGE)
    for change in ("user", None):
        theirs = {"metadata": {"annotations": {key: change}}}
        refused(lambda theirs=theirs: user.api.request("PATCH", target, theirs, content_type=MERGE))
    # What leaves it alone is fine, also beside it.
    beside = {"metadata": {"annotations": {"example.com/own": "changed"}, "labels": {"a": "b"}}}
    user.api.request("PATCH", target, beside, content_type=MERGE)
    operator.request("PATCH", target, {"metadata": {"annotations": {key: None}}}, content_type=MERGE)
    user.api.request("DELETE", target)


def test_the_status_subresource_is_no_way_round(policies: Cluster, user: User) -> None:
    stored = user.create("ResourceClaim", claim()["spec"], "c")
    changed = copy.deepcopy(stored)
    changed["metadata"]["annotations"] = {RECORD: "user"}

    # The server keeps the old annotations here by itself; should it ever stop, the policy covers it.
    answer = user.api.request("PUT", user.path("resourceclaims", "c", "status"), changed)

    assert RECORD not in answer["metadata"].get("annotations", {})
    stored = user.api.request("GET", user.path("resourceclaims", "c"))
    assert RECORD not in stored["metadata"].get("annotations", {})


def test_a_template_may_not_carry_the_annotations(user: User) -> None:
    spec = claim()
    spec["metadata"] = {"annotations": {RECORD: "user"}}

    refused(lambda: user.create("ResourceClaimTemplate", spec, "t"), "a template may not carry them")
    spec["metadata"] = {"annotations": {"example.com/own": "fine"}}
    user.create("ResourceClaimTemplate", spec, "t")
    # On the template itself they mean nothing.
    user.create("ResourceClaimTemplate", spec, "t2", annotations={RECORD: "x"})


def test_an_administrator_is_no_exception(policies: Cluster, user: User) -> None:
    """The record tells the operator's own allocations from others, so it must be the operator's own."""
    user.create("ResourceClaim", claim()["spec"], "c")

    refused(
        lambda: policies.request(
            "PATCH",
            user.path("resourceclaims", "c"),
            {"metadata": {"annotations": {RECORD: "admin"}}},
            content_type=MERGE,
        )
    )
