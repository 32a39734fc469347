"""Reads the anchors of headings in the project's markdown."""

import re


def anchor(heading: str) -> str:
    """Return the anchor of a heading, like GitHub: lower case, without punctuation, with dashes for spaces."""
    return re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    """Return the anchors of all headings of a page."""
    return {anchor(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
