"""For all unit tests of the driver: logging is what it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Commands set up logging for their process, which is ours when they are called here."""
    yield
    structlog.reset_defaults()
