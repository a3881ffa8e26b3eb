"""``sharing-affinity eval``: run extractors on an object, as the operator would.

One expression or the extractors of a slice from a file; or, for programs, JSON lines on standard input. It
runs also what admission would refuse for its estimated cost: `lint` and the webhook refuse.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any

from sharing_affinity.cli import BAD_INPUT, FINDINGS, GOOD, CommandError

if TYPE_CHECKING:
    from kubernetes_cel import Environment

_EPILOG = """\
With --stdin each line is {"id", "expression", "object"}; each answer, in the same order, is {"id", "value"}
or {"id", "error": {"kind", "message"}}, where kind is parse, type, length, runtime, cost or non-string, with
"estimatedCost" where it compiled and "cost" where it ran. Exit code: 0; 1 when an evaluation failed
(not with --stdin); 2 for bad input.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "eval",
        help="evaluate an extractor expression on an object",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--expression", "-e", metavar="E", help="the CEL expression")
    what.add_argument("-f", "--filename", metavar="SLICE", help="file with SharingAffinitySlices")
    what.add_argument("--stdin", action="store_true", help="read JSON lines from standard input")
    parser.add_argument(
        "--object",
        metavar="FILE",
        help="JSON or YAML file with the opaque parameters, '-' for standard input (default: null)",
    )
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="output form (default: text)"
    )


def run(args: argparse.Namespace) -> int:
    from kubernetes_cel import Environment

    environment = Environment.admission()
    if args.stdin:
        return _lines(environment, sys.stdin.buffer, sys.stdout)
    value = _object(args.object)
    if args.expression is not None:
        answers = [evaluate(environment, {"expression": args.expression}, value)]
    else:
        answers = list(_slices(environment, args.filename, value))
    for answer in answers:
        print(_json(answer) if args.output == "json" else _text(answer))
    return FINDINGS if any("error" in answer for answer in answers) else GOOD


def evaluate(environment: Environment, head: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """The answer to one expression on one object; `head` has `expression` and what else the answer starts
    with.
    """
    from kubernetes_cel import CelError

    answer = {key: item for key, item in head.items() if key != "expression"}
    try:
        program = environment.compile(head["expression"], output="string")
    except CelError as error:
        answer["error"] = {"kind": error.kind, "message": error.message}
        return answer
    outcome = program.run({"object": value})
    if outcome.error is None:
        answer["value"] = outcome.value
    else:
        answer["error"] = {"kind": outcome.error.kind, "message": outcome.error.message}
    answer["estimatedCost"] = program.estimate.max
    answer["cost"] = outcome.cost
    return answer


def _object(file: str | None) -> Any:
    if file is None:
        return None
    from kubernetes_cel import from_json
    from sharing_affinity.cli._files import InputError, read_value

    try:
        return from_json(read_value(file))
    except InputError as problem:
        raise CommandError(str(problem)) from None


def _slices(environment: Environment, file: str, value: Any) -> Iterator[dict[str, Any]]:
    from sharing_affinity.api import BadObject, names, parse_metadata_slice
    from sharing_affinity.cli._files import InputError, read

    try:
        documents = [document for document in read([file]) if document.raw.get("kind") == names.SLICE_KIND]
        slices = [parse_metadata_slice(document.raw) for document in documents]
    except (InputError, BadObject) as problem:
        raise CommandError(str(problem)) from None
    if not slices:
        raise CommandError(f"{file}: no {names.SLICE_KIND} in it")
    for found in slices:
        for extractor in found.extractors:
            head = {"slice": found.meta.name, "key": extractor.name, "expression": extractor.expression}
            yield evaluate(environment, head, value)


def _lines(environment: Environment, source: IO[bytes], sink: IO[str]) -> int:
    from kubernetes_cel import from_json
    from kubernetes_cel.values import well_formed

    code = GOOD
    for number, line in enumerate(source, 1):
        if not line.strip():
            continue
        try:
            request = _request(line)
        except ValueError as problem:
            print(f"line {number}: {problem}", file=sys.stderr)
            answer: dict[str, Any] = {"id": None, "error": {"kind": "input", "message": str(problem)}}
            code = BAD_INPUT
        else:
            head = {"id": request.get("id"), "expression": well_formed(request["expression"])}
            answer = evaluate(environment, head, from_json(request.get("object")))
        sink.write(_json(answer) + "\n")
        sink.flush()
    return code


def _request(line: bytes) -> dict[str, Any]:
    try:
        request = json.loads(line.decode("utf-8", "replace"), parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None
    if not isinstance(request, dict) or not isinstance(request.get("expression"), str):
        raise ValueError('want an object with a string "expression"')
    return request


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _json(answer: Mapping[str, Any]) -> str:
    from kubernetes_cel.values import well_formed

    return well_formed(json.dumps(answer, ensure_ascii=False, separators=(", ", ": ")))


def _text(answer: Mapping[str, Any]) -> str:
    head = f"{answer['slice']} {answer['key']}: " if "key" in answer else ""
    error = answer.get("error")
    outcome = f"{error['kind']} error: {error['message']}" if error else json.dumps(answer["value"])
    costs = [
        f"{label} {answer[field]}"
        for field, label in (("cost", "cost"), ("estimatedCost", "estimated at most"))
        if field in answer
    ]
    return f"{head}{outcome}" + (f"  ({', '.join(costs)})" if costs else "")
