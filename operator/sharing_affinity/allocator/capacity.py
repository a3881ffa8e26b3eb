"""What a request consumes of a device's capacities (KEP-5075), by upstream's arithmetic of 1.37.

For every capacity of the device: what the request names, rounded by the capacity's policy; without a request
the policy's default; without a default the whole capacity. Amounts are exact; only the step arithmetic works
on int64, in thousandths where everything is representable in them, otherwise in whole units rounded up, and
an amount that does not fit is an error for the whole node rather than a device to skip.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sharing_affinity.api import Quantity, quantity
from sharing_affinity.api.objects import Capacity, RequestPolicy

Amounts = Mapping[str, Quantity]


class CapacityError(Exception):
    """A request that cannot be represented in a capacity's range arithmetic, or a negative amount."""


class Demand(NamedTuple):
    """What one request would consume of one device; ``problem`` when policy or capacity names rule it out."""

    amounts: Amounts
    problem: str = ""


def demand(requested: Amounts, capacities: Mapping[str, Capacity]) -> Demand:
    """Consumption of every capacity of the device, zero amounts included.

    Raises :class:`CapacityError`. A problem in the result only rules out this device.
    """
    if not requested.keys() <= capacities.keys():
        return Demand({}, f"has no capacity {min(requested.keys() - capacities.keys())}")
    amounts = {}
    for name, capacity in capacities.items():
        amount = _consumed(requested.get(name), capacity, name)
        if amount.nano < 0:
            raise CapacityError(f"capacity {name}: the amount {amount} is negative")
        amounts[name] = amount
    for name, amount in amounts.items():
        if _violates(amount, capacities[name].policy):
            return Demand(amounts, f"its request policy does not allow {amount} of {name}")
    return Demand(amounts)


def fits(amounts: Amounts, capacities: Mapping[str, Capacity], *used: Amounts) -> str:
    """Empty when ``amounts`` fit beside everything in ``used``, otherwise the first capacity that does
    not."""
    for name, capacity in capacities.items():
        total = amounts[name].nano
        for consumed in used:
            if name in consumed:
                total += consumed[name].nano
        if total > capacity.value.nano:
            return name
    return ""


def _consumed(requested: Quantity | None, capacity: Capacity, name: str) -> Quantity:
    policy = capacity.policy
    if requested is None:
        return policy.default if policy is not None and policy.default is not None else capacity.value
    if policy is None:
        return requested
    if policy.minimum is not None:
        return _round_range(requested, policy, name)
    if policy.valid_values:
        return next((value for value in policy.valid_values if requested <= value), requested)
    return requested


def _round_range(requested: Quantity, policy: RequestPolicy, name: str) -> Quantity:
    minimum, step = policy.minimum, policy.step
    assert minimum is not None
    if requested < minimum:
        return minimum
    if step is None:
        return requested
    milli = _uses_milli(policy)
    if milli:
        amount = requested.exact_milli()
        if amount is None:
            raise CapacityError(f"capacity {name}: {requested} is not representable in thousandths")
        low, unit = minimum.milli, step.milli
    else:
        if requested.nano > quantity.INT64_MAX * quantity.NANO:
            raise CapacityError(f"capacity {name}: {requested} is beyond 64 bits")
        amount, low, unit = requested.value, minimum.value, step.value
    steps = -((low - amount) // unit)
    if low >= 0 and steps > (quantity.INT64_MAX - low) // unit:
        raise CapacityError(f"capacity {name}: {requested} rounded up to the next step is beyond 64 bits")
    total = low + unit * steps
    if not milli:
        return quantity.from_int(total, step.form)
    return quantity.from_milli(total, step.form)


def _uses_milli(policy: RequestPolicy) -> bool:
    """Whether every bound of the range is a whole number of thousandths within int64."""
    bounds = (policy.minimum, policy.maximum, policy.step)
    if any(bound is not None and bound.exact_milli() is None for bound in bounds):
        return False
    return policy.step is None or policy.step.milli >= 1


def _is_default(amount: Quantity, policy: RequestPolicy | None) -> bool:
    return policy is not None and policy.default is not None and amount == policy.default


def _violates(amount: Quantity, policy: RequestPolicy | None) -> bool:
    if policy is None or _is_default(amount, policy):
        return False
    if policy.has_range:
        if policy.maximum is not None and amount > policy.maximum:
            return True
        if policy.step is not None and policy.minimum is not None:
            if _uses_milli(policy):
                exact = amount.exact_milli()
                return exact is None or (exact - policy.minimum.milli) % policy.step.milli != 0
            return (amount.value - policy.minimum.value) % policy.step.value != 0
        return False
    return bool(policy.valid_values) and amount not in policy.valid_values
