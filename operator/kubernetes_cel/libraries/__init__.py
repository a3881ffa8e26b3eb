"""The function libraries of the Kubernetes environment, one module each, in the order in which they are
merged.

`ADMISSION` is what a ValidatingAdmissionPolicy of Kubernetes 1.37 may use (stored expressions). A module that
brings a library has a constant `LIBRARY`, a `declarations.Library`.
"""

from __future__ import annotations

from kubernetes_cel.declarations import Library

ADMISSION: tuple[Library, ...] = ()
