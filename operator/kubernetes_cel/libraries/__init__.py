"""The function libraries of the Kubernetes environment, one module each, in the order in which they are
merged.

`ADMISSION` is what a ValidatingAdmissionPolicy of Kubernetes 1.37 may use (stored expressions). A module that
brings a library has a constant `LIBRARY`, a `declarations.Library`.
"""

from __future__ import annotations

from kubernetes_cel.declarations import Library
from kubernetes_cel.libraries import (
    conversions,
    formats,
    lists,
    network,
    quantity,
    regex,
    semver,
    sets,
    strings,
    time,
    urls,
)

ADMISSION: tuple[Library, ...] = (
    conversions.LIBRARY,
    time.LIBRARY,
    urls.LIBRARY,
    regex.LIBRARY,
    quantity.LIBRARY,
    strings.LIBRARY,
    sets.LIBRARY,
    network.LIBRARY,
    formats.LIBRARY,
    semver.LIBRARY,
    lists.EXTENSION,
    lists.KUBERNETES,
)
