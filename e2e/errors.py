"""Errors of the cluster tool. Each message says what failed and, where there is one, the line to type."""


class ClusterError(Exception):
    """Something about the cluster or the host went wrong; the message is for the person who typed the
    command.
    """


class ApiError(ClusterError):
    """The API server answered with a status of 400 or more.

    `status` is the HTTP code, `reason` and `message` are those of the Status object (or the raw text).
    """

    def __init__(self, status: int, reason: str, message: str, call: str) -> None:
        super().__init__(f"{call}: {status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
