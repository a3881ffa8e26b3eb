"""For all tests: the skip policy, the cluster fixtures, hypothesis profiles, and no proxy for loopback."""

from __future__ import annotations

import os

import hypothesis

pytest_plugins = ["harness.policy", "e2e.fixtures"]

# Local clusters are never reached through a proxy, also when pytest is called without make.
_direct = ["localhost", "127.0.0.1", "::1"]
for _name in ("NO_PROXY", "no_proxy"):
    _set = [host for host in os.environ.get(_name, "").split(",") if host]
    os.environ[_name] = ",".join(_set + [host for host in _direct if host not in _set])

# No deadline: two cores shared with clusters make times meaningless. CI repeats the same examples every
# time, since a landing must not fail over an example that nobody has changed; people at their desks
# explore.
hypothesis.settings.register_profile("desk", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "desk")
