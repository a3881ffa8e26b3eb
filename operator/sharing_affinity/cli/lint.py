"""``sharing-affinity lint``: find what is wrong with slices before a cluster does.

Checks SharingAffinitySlices against their schema, compiles every extractor, adds up what they may cost, and
judges pools by all slices in the files together. ResourceSlices may be given as well; without any of a pool's
own, its number of members and its fence are not judged.
"""

from __future__ import annotations

import argparse

from sharing_affinity.cli import FINDINGS, GOOD, CommandError


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "lint", help="check slices: schema, extractors, cost, pool rules", description=__doc__
    )
    parser.add_argument(
        "-f",
        "--filename",
        action="extend",
        nargs="+",
        required=True,
        metavar="FILE",
        help="YAML or JSON, several documents allowed, - for standard input; may be given again",
    )
    parser.add_argument(
        "--rule-fences",
        action="store_true",
        help="let a DeviceTaintRule with the fence key count as the fence",
    )
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="output form")


def run(args: argparse.Namespace) -> int:
    import json
    from dataclasses import asdict

    from sharing_affinity.cli._files import InputError, read
    from sharing_affinity.cli._lint import lint

    try:
        documents = read(args.filename)
    except InputError as problem:
        raise CommandError(str(problem)) from None
    findings = lint(documents, rule_fences=args.rule_fences)
    if args.output == "json":
        content = {"findings": [asdict(finding) for finding in findings]}
        print(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        for finding in findings:
            print(finding)
    return FINDINGS if findings else GOOD
