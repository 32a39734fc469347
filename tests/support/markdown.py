"""What tests read in the project's markdown: its headings, by the names that links give them."""

import re


def anchor(heading: str) -> str:
    """As forges make it: lower case, without punctuation, with dashes for spaces."""
    return re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    """Those of all headings of a page."""
    return {anchor(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
