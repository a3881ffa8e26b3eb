"""The cluster's side: access, version, clock, rights, fields that are kept, runtime, published slices."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from affinity_driver.kube import ApiError, KubeClient
from affinity_driver.publish.desired import METADATA_SLICES, RESOURCE_SLICES, Device, Fence, Pool, members
from affinity_driver.publish.semantic import differences, gates_of
from sharing_affinity.api import Extractor, names

from .findings import Finding, ok, unsure, wrong

OLDEST = (1, 36)
SKEW = 5.0
"""Seconds between the node's clock and the API server's that are too many: fences count their age in tens."""
NODE_NAME = "authentication.kubernetes.io/node-name"
_REVIEW = "authorization.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class Right:
    """One thing the driver must be allowed to do; ``what`` stops without it."""

    verb: str
    group: str
    resource: str
    what: str
    name: str = ""

    def __str__(self) -> str:
        named = f" {self.name}" if self.name else ""
        return f"{self.verb} {self.resource}{'.' + self.group if self.group else ''}{named}"


def rights(driver: str) -> Sequence[Right]:
    """What the manifests' ClusterRole grants (a test compares)."""
    dra, own = "resource.k8s.io", names.GROUP
    slices = [
        Right(verb, group, plural, "devices are not published")
        for group, plural in ((dra, "resourceslices"), (own, names.SLICE_PLURAL))
        for verb in ("get", "list", "watch", "create", "update", "delete")
    ]
    status = "claims' status.devices is not written"
    return (
        Right("get", dra, "resourceclaims", "no claim can be prepared"),
        *slices,
        Right("get", "", "nodes", "devices are not published"),
        Right("patch", own, f"{names.SLICE_PLURAL}/status", "the condition Published is not written"),
        Right("patch", dra, "resourceclaims/status", status),
        Right("associated-node:patch", dra, "resourceclaims/driver", status, driver),
        Right("create", "", "events", "problems are told in the log only"),
    )


def look(
    api: KubeClient, driver: str, node: str, devices: Sequence[Device], extractors: Sequence[Extractor],
    clock: Callable[[], float] = time.time,
) -> Iterator[Finding]:  # fmt: skip
    """All findings about the cluster; only the first where the API server does not answer."""
    try:
        version = str(api.get("/version")["gitVersion"])
    except (ApiError, OSError) as error:
        yield wrong(
            "API server", str(error), "check address, certificate and token of the kubeconfig or the pod"
        )
        return
    yield _version(version)
    yield _clock(api, clock)
    yield _token(api, node)
    yield from _rights(api, driver)
    uid, findings = _node(api, node)
    yield from findings
    if uid:
        pool = Pool(driver, node, node, uid, tuple(devices), tuple(extractors), Fence.TAINT)
        yield from _fields(api, pool)
        yield from _published(api, driver, node)


def _version(version: str) -> Finding:
    number = re.match(r"v(\d+)\.(\d+)", version)
    if number and (int(number[1]), int(number[2])) < OLDEST:
        return wrong(
            "API server", f"is {version}", "Kubernetes 1.36 is the oldest that sharing affinity works with"
        )
    return ok("API server", f"answers, {version}")


def _clock(api: KubeClient, clock: Callable[[], float]) -> Finding:
    before = clock()
    try:
        server = parsedate_to_datetime(api.date()).timestamp() + 0.5  # whole seconds are told
    except (ApiError, ValueError) as error:
        return unsure(
            "clock", f"the API server does not tell the time: {error}", "compare it with this node's"
        )
    skew = (before + clock()) / 2 - server
    if abs(skew) > SKEW:
        ahead = "ahead of" if skew > 0 else "behind"
        return wrong(
            "clock",
            f"this node is {abs(skew):.0f} s {ahead} the API server",
            "synchronise it (chrony, systemd-timesyncd): ages of fences and times of conditions are wrong",
        )
    return ok("clock", "agrees with the API server's")


def _token(api: KubeClient, node: str) -> Finding:
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        user = api.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)["status"]["userInfo"]
    except ApiError as error:
        return unsure("token", f"the API server does not say who we are: {error}", "ask its administrator")
    bound = (user.get("extra") or {}).get(NODE_NAME) or []
    if bound != [node]:
        says = f"bound to node {bound[0]}" if bound else "bound to no node"
        return wrong(
            "token",
            f"{user['username']}, {says}; this is node {node}",
            "run as a pod there, or with a token made for that Node (kubectl create token "
            "--bound-object-kind=Node): the driver's policy and the rights to status.devices ask for it",
        )
    return ok("token", f"{user['username']}, bound to this node")


def _rights(api: KubeClient, driver: str) -> Iterator[Finding]:
    missing: dict[str, list[Right]] = {}
    for right in rights(driver):
        resource, _, subresource = right.resource.partition("/")
        asked = {"group": right.group, "resource": resource, "subresource": subresource}
        attributes = {**asked, "verb": right.verb, "name": right.name}
        body = {"apiVersion": _REVIEW, "kind": "SelfSubjectAccessReview"}
        try:
            answer = api.create(
                f"/apis/{_REVIEW}/selfsubjectaccessreviews",
                {**body, "spec": {"resourceAttributes": attributes}},
            )
        except ApiError as error:
            yield unsure("rights", f"the API server does not tell: {error}", "ask its administrator")
            return
        if not answer["status"].get("allowed"):
            missing.setdefault(right.what, []).append(right)
    for what, lacking in missing.items():
        yield wrong(
            "rights",
            f"{what}: missing {', '.join(map(str, lacking))}",
            "apply the ClusterRole and ClusterRoleBinding of the driver's manifests",
        )
    if not missing:
        yield ok("rights", "all that the driver needs")


def _node(api: KubeClient, node: str) -> tuple[str, list[Finding]]:
    try:
        found = api.get(f"/api/v1/nodes/{node}")
    except ApiError as error:
        return "", [wrong("node", f"Node {node}: {error}", "is --node-name the Node's name?")]
    info = (found.get("status") or {}).get("nodeInfo") or {}
    return str(found["metadata"]["uid"]), [_runtime(str(info.get("containerRuntimeVersion") or ""))]


def _runtime(version: str) -> Finding:
    """CDI in the container runtime: by its version, which is all that can be seen from here."""
    name, _, rest = version.partition("://")
    number = re.match(r"v?(\d+)\.(\d+)", rest)
    if number is None:
        return unsure("runtime", f"unknown: {version or 'the Node does not say'}", "does it support CDI?")
    at = (int(number[1]), int(number[2]))
    if name == "containerd" and at >= (2, 0):
        return ok("runtime", f"{version}, CDI is on by default")
    if name == "containerd" and at >= (1, 7):
        return unsure(
            "runtime", f"{version}: CDI is off by default",
            "set enable_cdi = true in [plugins.\"io.containerd.grpc.v1.cri\"] of its configuration",
        )  # fmt: skip
    if name == "cri-o" and at >= (1, 23):
        return ok("runtime", f"{version}, CDI is on")
    if name in ("containerd", "cri-o"):
        return wrong("runtime", f"{version} does not support CDI", "containerd 1.7 or CRI-O 1.23 is needed")
    return unsure("runtime", f"{version}: not known here", "does it support CDI?")


def _fields(api: KubeClient, pool: Pool) -> Iterator[Finding]:
    """Whether slices would be stored as sent, asked by creating them without storing (``dryRun``)."""
    seen = set()
    for member in members(pool):
        if member.collection in seen:
            continue
        seen.add(member.collection)
        body = member.with_generation(1)
        body = {**body, "metadata": {"generateName": "doctor-"}}
        kind = str(body["kind"])
        try:
            stored = api.create(f"{member.collection}?dryRun=All", body)
        except ApiError as error:
            remedy = "the message says what to change"
            if error.code == 404:
                remedy = "kubectl apply --server-side -k crds"
            elif error.code == 403:
                remedy = "put right rights and token first; then see the policy that is named"
            yield wrong("fields", f"{kind} would be refused: {error}", remedy)
            continue
        lost = list(differences(body["spec"], stored.get("spec"), "spec"))
        gates = ", ".join(gates_of(lost))
        if lost:
            yield wrong(
                "fields",
                f"the API server drops {', '.join(lost[:3])} of a {kind}",
                f"switch on feature gate {gates}" if gates else "apply the CRDs of this version",
            )
        else:
            yield ok("fields", f"a {kind} is stored as sent")


def _published(api: KubeClient, driver: str, node: str) -> Iterator[Finding]:
    selector = {"fieldSelector": f"spec.driver={driver},spec.nodeName={node}"}
    try:
        devices, metadata = (
            api.list(path, selector).get("items") or [] for path in (RESOURCE_SLICES, METADATA_SLICES)
        )
    except ApiError:
        return  # told among the rights
    if not devices:
        yield wrong(
            "slices",
            "no ResourceSlice of this driver and node",
            "published once the kubelet has accepted the driver; its log has what the API server answered",
        )
        return
    generations = {item["spec"]["pool"]["generation"] for item in (*devices, *metadata)}
    problems = [
        condition["message"]
        for item in metadata
        for condition in (item.get("status") or {}).get("conditions") or ()
        if condition["status"] == "False"
    ]
    if problems:
        yield wrong(
            "slices", problems[0], "see the conditions of the SharingAffinitySlice (kubectl get sas -o yaml)"
        )
    elif len(generations) > 1:
        yield unsure(
            "slices", f"generations {sorted(generations)}", "look again in a minute: an update is under way"
        )
    elif not metadata:
        yield unsure(
            "slices", "devices without extractors", "the driver runs with --no-affinity, or an old version"
        )
    else:
        yield ok("slices", f"{len(devices)} with devices, {len(metadata)} with extractors, one generation")
