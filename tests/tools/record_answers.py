"""Writes down what the API server of CRRD_TEST_KUBECONFIG says in the conversations of the tests.

    CRRD_TEST_KUBECONFIG=... python -m tests.tools.record_answers

The cluster needs the CRD, and may not run crrd's admission. What has changed since the last time is for people to read
(`git diff`): the local API server is to follow.
"""

import asyncio
import json
import os

from crrd.kube.access.config import find_access
from tests.localnode.api.test_real_answers import RECORD
from tests.support.conversations import CONVERSATIONS, answers


async def record() -> None:
    """Hold all conversations, and write the file."""
    access = await find_access(os.environ["CRRD_TEST_KUBECONFIG"], os.environ).current()
    said = {name: await answers(access, name) for name in CONVERSATIONS}
    lines = ",\n".join(
        f" {json.dumps(name)}: [\n" + ",\n".join(f"  {json.dumps(one, sort_keys=True)}" for one in found) + "\n ]"
        for name, found in said.items()
    )
    RECORD.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(record())
