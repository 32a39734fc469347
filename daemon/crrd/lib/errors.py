"""The errors that crrd raises on purpose. The edges translate foreign ones into these, with their cause kept."""


class CrrdError(Exception):
    """The root of all errors that crrd raises on purpose."""


class ConfigurationError(CrrdError):
    """Something that waiting does not heal: one line that says what is wrong, where, and what to do."""


class OutputError(CrrdError):
    """Standard output takes nothing more."""

    def __init__(self, message: str, *, reader_gone: bool) -> None:
        super().__init__(message)
        self.reader_gone = reader_gone  # Nobody reads it any more, as after `| head`


class RuntimeUnavailableError(CrrdError):
    """The container runtime cannot be reached now; trying again later may help."""


class RuntimeCallError(CrrdError):
    """The container runtime answered a call with an error."""

    def __init__(self, message: str, *, code: str = "", not_found: bool = False) -> None:
        super().__init__(message)
        self.code = code  # gRPC's name of the status code, e.g. "DEADLINE_EXCEEDED".
        self.not_found = not_found


class ApiUnavailableError(CrrdError):
    """The API server cannot be reached, or asks for patience (429, 5xx)."""

    LONGEST_PATIENCE_SECONDS = 30.0  # Whatever a server asks for: one answer must not silence a daemon for hours

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        # Seconds that the server asked to wait, as far as we do that for it; 0 where it did not say
        self.retry_after = min(retry_after or 0.0, self.LONGEST_PATIENCE_SECONDS)


class ApiRefusedError(CrrdError):
    """The API server understood and refused (4xx other than those below)."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status  # The HTTP status
        self.resource = ""  # What the refused call was about, as kubectl names resources; "" where nobody knows


class ConflictError(ApiRefusedError):
    """The object has changed since it was read (409): decide again on the newer one."""


class GoneError(ApiRefusedError):
    """The object is no more (404)."""


class ExpiredError(ApiRefusedError):
    """The resourceVersion is too old (410): list again."""
