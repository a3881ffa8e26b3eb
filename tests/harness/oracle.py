"""The one Python client of the Go oracle in ``tests/oracle``.

The oracle answers with upstream's own code (cel-go, Kubernetes' CEL environments, the structured allocator).
It is built at most once per content (``harness.gobuild``). A process speaks JSON lines; requests
are pipelined by a writer thread, because waiting for each answer would cost more than the answers. Every read
has a deadline: a hanging oracle fails a test, it does not hang it.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from harness import gobuild

SOURCES = Path(__file__).resolve().parent.parent / "oracle"
ANSWER_TIMEOUT_S = 60.0


class OracleError(Exception):
    """The oracle could not be built, died, was late, or could not answer a request."""


def build() -> Path:
    """The oracle's binary, built unless this very content is built already."""
    try:
        return gobuild.build(SOURCES)
    except gobuild.BuildError as error:
        raise OracleError(str(error)) from None


def module_directory(module: str) -> Path:
    """Where the module cache holds the sources of ``module`` (one of the oracle's own pins)."""
    go, environment = gobuild.go()
    done = subprocess.run(
        [go, "mod", "download", "-json", module],
        cwd=SOURCES,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode != 0:
        raise OracleError(f"{module}: {done.stdout}{done.stderr}")
    return Path(json.loads(done.stdout)["Dir"])


class Oracle:
    """A running ``oracle SUBCOMMAND``; a context manager, usable from one thread at a time.

    ``ask`` and ``ask_all`` give the answers in the order of the requests, as decoded JSON. The ``id`` of a
    request is set by the client. An answer with ``fatal`` (the oracle could not understand the request)
    raises ``OracleError``.
    """

    def __init__(self, subcommand: str, *, answer_timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._timeout = answer_timeout_s
        self._next_id = 0
        self._process = subprocess.Popen(
            [str(build()), subcommand], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._answers: queue.Queue[bytes | None] = queue.Queue()
        self._stderr: list[bytes] = []
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._threads = [
            threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True),
            threading.Thread(target=self._drain, args=(self._process.stderr,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, stream: IO[bytes]) -> None:
        for line in stream:
            self._answers.put(line)
        self._answers.put(None)

    def _drain(self, stream: IO[bytes]) -> None:
        for line in stream:
            self._stderr.append(line)
            del self._stderr[:-200]

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer one request."""
        return next(self.ask_all([request]))

    def ask_all(self, requests: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Answer many requests, pipelined; the iterator must be read to its end before the next call."""
        lines: list[bytes] = []
        first = self._next_id
        for request in requests:
            lines.append(json.dumps({**request, "id": self._next_id}).encode() + b"\n")
            self._next_id += 1
        writer = threading.Thread(target=self._write, args=(lines,), daemon=True)
        writer.start()
        for expected in range(first, first + len(lines)):
            try:
                line = self._answers.get(timeout=self._timeout)
            except queue.Empty:
                self.close()
                raise OracleError(
                    f"no answer within {self._timeout} s to {lines[expected - first]!r}"
                ) from None
            if line is None:
                raise OracleError(
                    f"the oracle died at {lines[expected - first]!r}:\n"
                    + b"".join(self._stderr).decode(errors="replace")
                )
            answer: dict[str, Any] = json.loads(line)
            if "fatal" in answer:
                raise OracleError(
                    f"{lines[expected - first]!r}: {answer['fatal']}\n{answer.get('stack', '')}"
                )
            if answer.pop("id") != expected:
                raise OracleError("answers and requests are out of step")
            yield answer
        writer.join(self._timeout)

    def _write(self, lines: list[bytes]) -> None:
        assert self._process.stdin is not None
        try:
            for start in range(0, len(lines), 100):
                self._process.stdin.write(b"".join(lines[start : start + 100]))
                self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            pass  # the reader reports why the process is gone

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5)

    def __enter__(self) -> Oracle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
