"""`make demo`: the product's main job on a real cluster, as a story for a terminal.

Two acts. First the problem, on stock Kubernetes: the scheduler counts free slots, does not see that a NIC is
already configured for another subnet, and the pod hangs on the node. Then the same NICs with the product.
Every step states what should happen and checks it; a step that goes otherwise ends the demo with exit code 1.

Where this host can run nodes, real kubelets start real containers. Elsewhere the cluster is a control plane
with a hand-made node, and the demo plays the kubelet: it calls the driver over its socket, and says so.
"""

import argparse
import json
import os
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from e2e import run
from e2e.cluster import Cluster, wait_for
from e2e.errors import ClusterError
from e2e.installation import Installation, install
from e2e.kubelets import Kubelet, kubelet_of
from e2e.product import METADATA, NIC_DRIVER, command

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default"
CLASS = "shared-nic.sharingaffinity.dev"
SHOWN = ("NIC_DEVICE", "NIC_SUBNET", "NIC_SHARE_ID")


class Story:
    """Prints the steps; what a reader could type is shown with a `$` before it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._step = 0
        self._start = time.monotonic()

    def act(self, title: str) -> None:
        self._print(f"\n== {title} ", "1;36", fill="=")

    def step(self, title: str) -> None:
        self._step += 1
        self._print(f"\n{self._step:2}. {title}", "1")

    def say(self, text: str) -> None:
        print(textwrap.fill(" ".join(text.split()), 100, initial_indent="    ", subsequent_indent="    "))

    def good(self, text: str) -> None:
        self._print(f"    ok  {text}", "32")

    def kubectl(self, *args: str) -> str:
        """Run kubectl, and show the call with its output."""
        return self.show(f"kubectl {' '.join(args)}", self._cluster.kubectl(*args))

    def show(self, command: str, output: str) -> str:
        self._print(f"    $ {command}", "2")
        print(textwrap.indent(output.rstrip(), "      "), flush=True)
        return output

    def seconds(self) -> float:
        return time.monotonic() - self._start

    def _print(self, text: str, style: str, fill: str = "") -> None:
        text = text + fill * max(0, 100 - len(text)) if fill else text
        print(f"\033[{style}m{text}\033[0m" if self._colour else text, flush=True)


@dataclass(frozen=True, slots=True)
class Stage:
    """What every step works with."""

    cluster: Cluster
    product: Installation
    kubelet: Kubelet
    story: Story

    def pod(self, name: str, subnet: str | None) -> None:
        """Create a pod that asks for one slot of a shared NIC, in a subnet."""
        template = f"nic-{subnet or 'without-subnet'}"
        self.cluster.apply(claim_template(template, subnet), pod(name, template, self.kubelet.image))
        self.story.show(f"kubectl apply -f {name}.yaml", f"pod/{name} asks for a shared NIC, {template}")

    def gone(self, *names: str) -> None:
        """Delete pods and wait until their claims are gone too."""
        for name in names:
            self.kubelet.delete(name)
        self.story.show(f"kubectl delete pod {' '.join(names)}", "deleted")
        wait_for(
            f"{names} and their claims are gone", lambda: not any(self.claim(name) for name in names), 60
        )

    def claim(self, pod_name: str) -> dict[str, Any] | None:
        """The claim that was made for a pod from its template."""
        for claim in self.cluster.request("GET", f"{CLAIMS}/resourceclaims")["items"]:
            if any(owner["name"] == pod_name for owner in claim["metadata"].get("ownerReferences", [])):
                found: dict[str, Any] = claim
                return found
        return None

    def device(self, pod_name: str) -> str | None:
        """The device allocated to a pod's claim."""
        allocation = ((self.claim(pod_name) or {}).get("status") or {}).get("allocation") or {}
        results = (allocation.get("devices") or {}).get("results") or []
        return str(results[0]["device"]) if results else None

    def lands_on(self, pod_name: str, device: str, subnet: str) -> None:
        """The pod runs, and its container sees the device in its subnet."""
        environment = self.kubelet.environment(pod_name)
        seen = {k: v for k, v in environment.items() if k in SHOWN}
        self.story.show(
            self.kubelet.shows(pod_name),
            "\n".join(f"{k}={v}" for k, v in sorted(seen.items())),
        )
        expect(f"{pod_name} was allocated {device}", self.device(pod_name), device)
        expect(f"{pod_name} sees its device", seen.get("NIC_DEVICE"), device)
        expect(f"{pod_name} sees its subnet", seen.get("NIC_SUBNET"), subnet)
        self.story.good(f"{pod_name} runs on {device} in {subnet}")

    def locks(self) -> dict[str, Mapping[str, str]]:
        """Show the lock state both ways, which have to agree; returns the lock of each locked device."""
        pools = json.loads(command(self.cluster, "locks", "-o", "json"))["pools"]
        rows = [row for pool in pools for row in pool["devices"]]
        held = {row["device"]: row["lock"] for row in rows if row["state"] == "Locked"}
        # The view follows the claims by a moment.
        wait_for(f"kubectl get sap shows {held}", lambda: self._viewed() == held)
        self.story.kubectl("get", "sap")
        self.story.show("sharing-affinity locks", command(self.cluster, "locks"))
        return held

    def _viewed(self) -> dict[str, Mapping[str, str]]:
        pools = self.cluster.request("GET", "/apis/sharingaffinity.dev/v1alpha1/sharingaffinitypools")[
            "items"
        ]
        devices = [device for pool in pools for device in (pool.get("status") or {}).get("devices") or []]
        return {d["name"]: d.get("lock") or {} for d in devices if d["state"] == "Locked"}


def claim_template(name: str, subnet: str | None) -> dict[str, Any]:
    """A ResourceClaimTemplate for one slot of a shared NIC; ``subnet`` goes into the driver's config."""
    parameters = {"apiVersion": f"{NIC_DRIVER}/v1", "kind": "NICConfig"}
    if subnet:
        parameters["subnet"] = subnet
    config = {"requests": ["nic"], "opaque": {"driver": NIC_DRIVER, "parameters": parameters}}
    request = {"name": "nic", "exactly": {"deviceClassName": CLASS}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "demo"}},
        "spec": {"spec": {"devices": {"requests": [request], "config": [config]}}},
    }


def pod(name: str, template: str, image: str) -> dict[str, Any]:
    """A pod that sleeps, with one claim made from ``template``."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "demo"}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "args": ["sleep", "86400"],
                    "imagePullPolicy": "Never",
                    "resources": {"claims": [{"name": "nic"}]},
                }
            ],
            "resourceClaims": [{"name": "nic", "resourceClaimTemplateName": template}],
        },
    }


def expect(what: str, found: object, wanted: object) -> None:
    """A claim of the story; ends the demo when it does not hold."""
    if found != wanted:
        raise ClusterError(f"{what}: expected {wanted!r}, found {found!r}")


# -- the story --------------------------------------------------------------------------------------------


def the_problem(stage: Stage) -> None:
    story = stage.story
    story.act("The problem: stock Kubernetes, no fence, no operator")
    story.say(
        f"The driver publishes two NICs of 16 slots each on {stage.kubelet.node.name}. The first pod on a NIC"
        " configures its subnet; pods of another subnet cannot share it. Nothing tells the scheduler."
    )
    stage.product.driver("--no-affinity")
    story.step("A pod of subnet-a gets eth1")
    stage.pod("first-a", "subnet-a")
    stage.lands_on("first-a", "eth1", "subnet-a")
    story.step("A pod of subnet-b lands on eth1 as well, since slots are free: the driver has to refuse it")
    stage.pod("stuck-b", "subnet-b")
    message = stage.kubelet.rejection("stuck-b")
    expect("the scheduler chose the NIC of the other subnet", stage.device("stuck-b"), "eth1")
    story.show("kubectl get events --field-selector involvedObject.name=stuck-b", message)
    if "subnet-b" not in message or "eth1" not in message:
        raise ClusterError(f"the rejection should name device and value: {message}")
    story.good("stuck-b hangs for as long as first-a lives, though eth2 is idle")
    stage.gone("stuck-b", "first-a")


def sharing(stage: Stage) -> None:
    story = stage.story
    story.act("With sharing affinity: the driver publishes an extractor, the operator allocates")
    story.step("Install, start the driver with its fence and metadata, and two operator replicas")
    # The devices were open until now: the driver fences them, waits until no scheduler can still be writing
    # an allocation decided before, and only then publishes the metadata. 30 s by default; nothing runs here.
    stage.product.driver("--fence-settle=3")
    stage.product.operators()
    wait_for("the operator has joined the pool", lambda: joined(stage))
    story.kubectl("get", "sas", "-o", "wide")
    story.good(f"{stage.product.leader()} leads, the other stands by")
    story.step("Two pods of subnet-a share eth1")
    stage.pod("a-1", "subnet-a")
    stage.lands_on("a-1", "eth1", "subnet-a")
    stage.pod("a-2", "subnet-a")
    stage.lands_on("a-2", "eth1", "subnet-a")
    story.step("A pod of subnet-b goes to eth2")
    stage.pod("b-1", "subnet-b")
    stage.lands_on("b-1", "eth2", "subnet-b")
    expect("the locks", stage.locks(), {"eth1": {"subnet": "subnet-a"}, "eth2": {"subnet": "subnet-b"}})


def pending(stage: Stage) -> None:
    story = stage.story
    story.step("A pod without a subnet stays pending, and its Event says why")
    stage.pod("no-subnet", None)
    message = wait_for("no-subnet has an Event of the operator", lambda: operator_event(stage, "no-subnet"))
    story.show("kubectl get events --field-selector involvedObject.name=no-subnet", message)
    if "subnet" not in message:
        raise ClusterError(f"the Event should name the key that is missing: {message}")
    expect("no device for no-subnet", stage.device("no-subnet"), None)
    story.good("pending with the reason, not looping on a node")
    story.step("A pod of subnet-c waits as well: both NICs are locked to other subnets")
    stage.pod("c-1", "subnet-c")
    message = wait_for("c-1 has an Event of the operator", lambda: operator_event(stage, "c-1"))
    story.show("kubectl get events --field-selector involvedObject.name=c-1", message)
    expect("no device for c-1", stage.device("c-1"), None)


def release(stage: Stage) -> None:
    story = stage.story
    story.step("The pods of subnet-a go; the lock clears with the last of them, and subnet-c takes eth1")
    stage.gone("a-1")
    expect("a-2 still holds eth1", stage.device("c-1"), None)
    stage.gone("a-2")
    stage.lands_on("c-1", "eth1", "subnet-c")
    expect("the locks", stage.locks(), {"eth1": {"subnet": "subnet-c"}, "eth2": {"subnet": "subnet-b"}})


def failover(stage: Stage) -> None:
    story = stage.story
    story.step("kill -9 of the active operator: the other takes over with the same locks")
    before = stage.locks()
    killed = stage.product.leader()
    story.show(stage.product.kill_leader(), f"{killed} is gone")
    start = time.monotonic()
    wait_for("another operator leads", lambda: stage.product.leader() != killed)
    story.good(f"{stage.product.leader()} leads after {time.monotonic() - start:.1f} s")
    expect("the locks after the takeover", stage.locks(), before)
    stage.pod("b-2", "subnet-b")
    stage.lands_on("b-2", "eth2", "subnet-b")
    story.good("rebuilt from the claims alone; a new pod of subnet-b joined eth2")


def joined(stage: Stage) -> bool:
    slices = stage.cluster.request("GET", METADATA)["items"]
    conditions = [c for s in slices for c in (s.get("status") or {}).get("conditions") or []]
    return any(c["type"] == "Joined" and c["status"] == "True" for c in conditions)


def operator_event(stage: Stage, name: str) -> str | None:
    """The text of the newest Event that the operator wrote on a pod."""
    query = f"involvedObject.name={name},involvedObject.kind=Pod"
    events = stage.cluster.request("GET", f"/api/v1/namespaces/default/events?fieldSelector={query}")["items"]
    ours = [e for e in events if e.get("reportingComponent") == "sharingaffinity.dev/operator"]
    return f"{ours[-1]['reason']}: {ours[-1]['message']}" if ours else None


# -- running it -------------------------------------------------------------------------------------------


def play(cluster: Cluster) -> None:
    """The whole story on a running cluster; raises `ClusterError` at the first step that is not as told."""
    kubelet = kubelet_of(cluster)
    installation = install(cluster, kubelet.node, kubelet.driver_flags)
    stage = Stage(cluster, installation, kubelet, Story(cluster))
    try:
        the_problem(stage)
        sharing(stage)
        pending(stage)
        release(stage)
        failover(stage)
        stage.story.act("The end")
        for line in kubelet.not_shown:
            stage.story.say(f"Not shown here: {line}")
        stage.story.good(f"every step went as told, in {stage.story.seconds():.0f} s")
        stage.gone("no-subnet", "b-1", "b-2", "c-1")
    finally:
        installation.close()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.demo", description=__doc__)
    parser.add_argument("--cluster", default=os.environ.get("CLUSTER") or "auto", choices=run.CHOICES)
    parser.add_argument("--keep", action="store_true", help="leave the cluster running (KEEP=1)")
    args = parser.parse_args(argv)
    return run.run(args.cluster, "demo", play, keep=args.keep or os.environ.get("KEEP") == "1")


if __name__ == "__main__":
    sys.exit(main())
