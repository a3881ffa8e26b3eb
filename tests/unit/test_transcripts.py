"""The reader of pages finds what differs, and only that."""

from __future__ import annotations

from harness.transcripts import Command, Driver, File, difference, steps

PAGE = """
<!-- driver: nic --pkey -->
```yaml title="a.yaml"
a: 1 # (1)!
```
```console
$ kubectl get pods
NAME   AGE
...
b      ...
$ kubectl delete pod a
```
"""


def test_what_a_page_says_to_do() -> None:
    assert list(steps(PAGE)) == [
        Driver(("nic", "--pkey")),
        File("a.yaml", "a: 1\n"),
        Command(("kubectl", "get", "pods"), ("NAME   AGE", "...", "b      ...")),
        Command(("kubectl", "delete", "pod", "a"), ()),
    ]


def test_differences() -> None:
    expected = ("NAME   AGE", "...", "b      ...", "c")
    assert difference(expected, "NAME AGE\na 1s\nb 2s\nc\nmore\n") == ""
    # The first line that fits need not be the right one.
    assert difference(expected, "NAME AGE\nb 1s\nb 2s\nc\n") == ""
    assert difference(expected, "NAME AGE\na 1s\nb 2s\nd\n") == "c"
    assert difference(expected, "AGE\n") == "NAME AGE"
    assert difference(("a.b",), "a-b\n") == "a.b"
