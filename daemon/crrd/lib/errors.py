"""The errors that crrd raises on purpose. `kube` and `cri` translate foreign errors to these, and keep the cause."""


class CrrdError(Exception):
    """The base class of all errors that crrd raises on purpose."""


class ConfigurationError(CrrdError):
    """An error that waiting does not fix: one line that says what is wrong, where, and what to do."""


class OutputError(CrrdError):
    """Standard output cannot be written."""

    def __init__(self, message: str, *, reader_gone: bool) -> None:
        super().__init__(message)
        self.reader_gone = reader_gone  # Whether the reader has closed it, as after `| head`


class RuntimeUnavailableError(CrrdError):
    """The container runtime cannot be reached now; a retry may succeed."""


class RuntimeCallError(CrrdError):
    """The container runtime answered a call with an error."""

    def __init__(self, message: str, *, code: str = "", not_found: bool = False) -> None:
        super().__init__(message)
        self.code = code  # gRPC's name of the status code, e.g. "DEADLINE_EXCEEDED".
        self.not_found = not_found


class ApiUnavailableError(CrrdError):
    """The API server cannot be reached, or is overloaded or failing (429, 5xx)."""

    LONGEST_PATIENCE_SECONDS = 30.0  # Limit for Retry-After, so that one response cannot stop a daemon for hours

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        # Seconds to wait that the server asked for, limited; 0 if it did not ask
        self.retry_after = min(retry_after or 0.0, self.LONGEST_PATIENCE_SECONDS)


class WithdrawnError(CrrdError):
    """The call was not sent, because it was not wanted any more when its turn came."""


class ApiRefusedError(CrrdError):
    """The API server rejected the request (4xx; the subclasses below are for single statuses)."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status  # The HTTP status
        self.resource = ""  # The resource of the rejected call, as kubectl names it; "" if unknown


class ConflictError(ApiRefusedError):
    """The object has changed since it was read (409): decide again on the newer version."""


class GoneError(ApiRefusedError):
    """The object does not exist (404)."""


class ExpiredError(ApiRefusedError):
    """The resourceVersion is too old (410): list again."""
