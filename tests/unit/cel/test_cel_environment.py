"""Environments: the cache, threads, cost limits, and that nothing of the process is changed."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kubernetes_cel import CheckError, CostLimitExceeded, Environment, EvaluationError, types
from kubernetes_cel.device import device_variable


def test_programs_are_cached_by_text() -> None:
    environment = Environment({"x": types.dyn}, cache_size=2)
    first = environment.compile("x.a")
    assert environment.compile("x.a") is first
    environment.compile("x.b")
    environment.compile("x.a")
    environment.compile("x.c")
    assert environment.compile("x.a") is first
    environment.compile("x.d")
    environment.compile("x.e")
    assert environment.compile("x.a") is not first


def test_failures_are_cached_and_raised_again() -> None:
    environment = Environment({})
    for _ in range(3):
        with pytest.raises(CheckError, match="undeclared reference to 'y'"):
            environment.compile("y")


def test_many_threads_share_a_program() -> None:
    program = Environment.admission().compile(
        'object.list.filter(x, x > object.n).map(x, string(x)).join(",") + (has(object.a) ? object.a : "-")'
    )

    def work(n: int) -> bool:
        value = {"list": list(range(20)), "n": n % 20}
        expected = ",".join(str(i) for i in range(20) if i > n % 20) + "-"
        return all(program.evaluate({"object": value}) == expected for _ in range(50))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(64)))


def test_many_threads_compile_at_once() -> None:
    environment = Environment.admission()
    barrier = threading.Barrier(8)

    def work(n: int) -> int:
        barrier.wait()
        return sum(environment.compile(f"object.a{n} == {i}").estimate.max for i in range(20))

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(work, range(8))) == {40}


def test_the_process_is_left_alone() -> None:
    code = (
        "import sys, threading; before = sys.getrecursionlimit();"
        "from kubernetes_cel import Environment;"
        "from celpy.celparser import CELParser;"
        "e = Environment.admission(); e.compile('(' * 200 + '1' + ')' * 200).evaluate({});"
        "assert sys.getrecursionlimit() == before;"
        "assert CELParser.CEL_PARSER is None;"
        "assert threading.active_count() == 1;"
        "assert CELParser().parse('a.b(c)').data == 'expr'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


class TestCostLimit:
    PROGRAM = Environment.admission().compile("object.list.all(x, x >= 0)")

    def test_stops_right_behind_the_limit(self) -> None:
        value = {"object": {"list": list(range(1000))}}
        full = self.PROGRAM.run(value).cost
        assert self.PROGRAM.run(value, cost_limit=full).value is True
        for limit in (0, 1, 2, 3, 10, 999, full - 1):
            outcome = self.PROGRAM.run(value, cost_limit=limit)
            assert isinstance(outcome.error, CostLimitExceeded)
            assert outcome.cost == limit + 1

    def test_is_never_absorbed(self) -> None:
        environment = Environment.admission()
        value = {"object": {"list": list(range(1000))}}
        for expression in (
            "object.list.all(x, x >= 0) || true",
            "true && object.list.all(x, x >= 0) || true",
            "[1].exists(i, object.list.all(x, x >= 0)) || true",
            "object.list.all(x, x >= 0) ? true : true",
        ):
            with pytest.raises(CostLimitExceeded):
                environment.compile(expression).evaluate(value, cost_limit=100)

    def test_errors_carry_the_cost(self) -> None:
        with pytest.raises(EvaluationError) as caught:
            Environment.admission().compile("object.a.b").evaluate({"object": {"a": {}}})
        assert caught.value.cost == 3


class TestDevice:
    ENVIRONMENT = Environment.device()
    DEVICE = device_variable(
        "nic.sharingaffinity.dev",
        {
            "model": {"string": "x710"},
            "other.dev/numa": {"int": 1},
            "other.dev/healthy": {"bool": True},
            "firmware": {"version": "1.2.3"},
            "lanes": {"ints": [1, 2, 4]},
        },
        {"slots": {"value": "16"}, "other.dev/memory": {"value": "2Gi"}},
        allow_multiple=True,
    )

    @pytest.mark.parametrize(
        "expression",
        [
            'device.driver == "nic.sharingaffinity.dev"',
            'device.attributes["nic.sharingaffinity.dev"].model == "x710"',
            'device.attributes["other.dev"].numa == 1 && device.attributes["other.dev"].healthy',
            'device.attributes["nic.sharingaffinity.dev"].firmware.isGreaterThan(semver("1.2.0"))',
            'device.capacity["nic.sharingaffinity.dev"].slots.compareTo(quantity("8")) > 0',
            'device.capacity["other.dev"].memory == quantity("2048Mi")',
            "device.allowMultipleAllocations",
            '!has(device.attributes["absent.dev"].x)',
            '!("absent.dev" in device.attributes)',
            "device.attributes.size() == 2",
            'cel.bind(a, device.attributes["other.dev"], a.numa == 1 && a.healthy)',
            'device.attributes["nic.sharingaffinity.dev"].lanes.includes(4)',
        ],
    )
    def test_selectors(self, expression: str) -> None:
        assert self.ENVIRONMENT.compile(expression, "bool").evaluate({"device": self.DEVICE}) is True

    def test_absent_attributes_are_errors(self) -> None:
        program = self.ENVIRONMENT.compile('device.attributes["absent.dev"].x == 1', "bool")
        with pytest.raises(EvaluationError, match="no such key: x"):
            program.evaluate({"device": self.DEVICE})

    def test_estimates_are_bounded_by_the_api(self) -> None:
        expression = 'device.attributes["a.dev"].exists(k, k.startsWith("x"))'
        assert self.ENVIRONMENT.compile(expression, "bool").estimate.max < 1_000_000
