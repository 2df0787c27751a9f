"""What a client of RLlink raises. Needs nothing else."""


class RLlinkError(RuntimeError):
    """The server refused a request.

    Attributes:
        code: error code of the specification, section 7.
        path: place of the mistake in the message; None without one.
    """

    def __init__(self, code: str, message: str, path: str | None = None) -> None:
        self.code, self.path = code, path
        super().__init__(f"{code}: {message}" + (f" (at {path})" if path else ""))


class ServerGone(ConnectionError):
    """The server cannot be reached, or the run is over."""
