"""Finds what other distributions of crrd add to it. They name it in an entry point, so crrd never imports them."""

from importlib.metadata import EntryPoint, entry_points

from crrd.lib.errors import ConfigurationError

ELSEWHERE = {"demo": "crrd-localnode", "forecast": "crrd-forecast"}
"""Name of an entry point -> the distribution that has it."""


def find(group: str, name: str) -> EntryPoint:
    """Return an entry point, not loaded yet. Raises ConfigurationError if its distribution is not installed."""
    for entry in entry_points(group=group, name=name):
        return entry
    raise ConfigurationError(f"{ELSEWHERE[name]} is not installed: run pip install {ELSEWHERE[name]}")
