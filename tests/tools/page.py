"""Prints the commands of sections of a page as a script: `python -m tests.tools.page quickstart.md [SECTION ...]`.

A workflow runs them on kind. What sets a machine up is left out.
"""

import sys

from tests.support.pages import script

if __name__ == "__main__":
    print(script(*sys.argv[1:]), end="")
