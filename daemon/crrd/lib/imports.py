"""Imports of libraries without the parts that crrd never uses.

Measured on Python 3.11: rich takes 3 MiB and 0.1 s of CPU, aiohttp's default SSL contexts 2 MiB and 0.05 s.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def keep_imports_lean() -> Iterator[None]:
    """Inside the context, imports do not load parts that no command uses.

    structlog imports rich, if installed, for tracebacks on terminals. (A table imports it later, if it is shown.)
    aiohttp creates contexts with all of the system's certificates when it is imported, but crrd makes its own ones,
    with the cluster's CA.
    """
    without_rich = "rich" not in sys.modules
    if without_rich:
        sys.modules["rich"] = None  # type: ignore[assignment]  # None disables an import
    paths = {"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": os.devnull}
    saved = {name: os.environ.get(name) for name in paths}
    os.environ.update(paths)
    try:
        yield
    finally:
        if without_rich:
            del sys.modules["rich"]
        for name, value in saved.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
