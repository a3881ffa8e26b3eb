"""What the API server would refuse, found before anything is written; pure.

A pool is published in several writes. A refusal in the middle leaves half a generation behind, so a profile's
mistakes are found here, all of them at once, and a faulty pool is reported and not tried.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from sharing_affinity.api import Extractor, names

from .desired import MAX_NAME, Pool

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9_]([-A-Za-z0-9_.]*[A-Za-z0-9_])?")
MAX_DRIVER = 63
MAX_ATTRIBUTES = 32
MAX_TAINTS = 16
"""Limits of resource/v1/types.go."""


def problems(pool: Pool) -> list[str]:
    """Everything wrong with ``pool``, each with the name of the thing; empty for a good one."""
    found = []
    if len(pool.driver) > MAX_DRIVER or not _SUBDOMAIN.fullmatch(pool.driver):
        found.append(f"driver {pool.driver!r} is no DNS subdomain of at most {MAX_DRIVER} characters")
    if len(pool.name) > MAX_NAME or not all(_SUBDOMAIN.fullmatch(part) for part in pool.name.split("/")):
        found.append(
            f"pool {pool.name!r} is no '/'-separated list of DNS subdomains of at most {MAX_NAME} characters"
        )
    for name, times in Counter(device.name for device in pool.devices).items():
        if times > 1:
            found.append(f"device {name!r} is there {times} times")
        if not _LABEL.fullmatch(name):
            found.append(f"device {name!r} is no DNS label")
    for device in pool.devices:
        size = len(device.attributes) + len(device.capacity)
        if size > MAX_ATTRIBUTES:
            found.append(
                f"device {device.name!r} has {size} attributes and capacities, over {MAX_ATTRIBUTES}"
            )
        if len(device.taints) >= MAX_TAINTS:
            found.append(
                f"device {device.name!r} has {len(device.taints)} taints; one place is left to the fence"
            )
        for name, value in device.capacity.items():
            if device.shareable and "requestPolicy" not in value:
                found.append(f"device {device.name!r}: capacity {name!r} lacks requestPolicy.default")
            if not device.shareable and "requestPolicy" in value:
                found.append(
                    f"device {device.name!r}: capacity {name!r} has a requestPolicy, but is not shareable"
                )
    found += extractor_problems(pool.extractors)
    return found


def extractor_problems(extractors: Sequence[Extractor]) -> list[str]:
    """What is wrong with the names and sizes of a pool's extractors."""
    found = [
        f"extractor {name!r} is there {times} times; the pool would be invalid"
        for name, times in Counter(extractor.name for extractor in extractors).items()
        if times > 1
    ]
    return found + [problem for extractor in extractors if (problem := extractor_problem(extractor))]


def extractor_problem(extractor: Extractor) -> str:
    """What is wrong with one extractor's name or size; "" when nothing is. Its CEL is not looked at."""
    if len(extractor.name) > MAX_DRIVER or not _KEY.fullmatch(extractor.name):
        return f"extractor name {extractor.name!r} is no qualified name of at most {MAX_DRIVER} characters"
    size = len(extractor.expression.encode())
    if not 1 <= size <= names.MAX_EXPRESSION_LENGTH:
        return f"extractor {extractor.name!r}: its expression has {size} bytes"
    return ""
