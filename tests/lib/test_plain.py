"""Texts for people: commands that work on the cluster of the reader."""

import json

import pytest

from crrd.lib.plain import json_with_flags, with_flags

FLAGS = "--context prod --as 'ann \"x\"'"


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("kubectl get crr -A", "kubectl FLAGS get crr -A"),
        ("see why: kubectl -n shop logs web", "see why: kubectl FLAGS -n shop logs web"),
        ("(kubectl set image pod/db-0 app=IMAGE)", "(kubectl FLAGS set image pod/db-0 app=IMAGE)"),
        ("a; kubectl recreate undo r -n shop --yes", "a; kubectl recreate FLAGS undo r -n shop --yes"),
        ("`crrd recreate resume r`", "`crrd recreate FLAGS resume r`"),
        ("crrd explain a/b and crrd doctor", "crrd explain FLAGS a/b and crrd doctor FLAGS"),
        *(
            (text, text)
            for text in (
                "kubectl recreate --image does this",
                "kubectl config use-context",
                "kubectl has no such flag",
                "grant crrd-recreate, use kubectl-recreate, not crrd describe",
                "my kubectl",
            )
        ),
    ],
)
def test_commands_get_the_flags_that_select_the_cluster(text: str, changed: str) -> None:
    assert with_flags(text, "") == text
    found = with_flags(text, FLAGS)
    assert found == changed.replace("FLAGS", FLAGS)
    assert with_flags(found, FLAGS) == found, "a text may pass through two displays"
    assert json.loads(json_with_flags({text: [text]}, FLAGS)) == {found: [found]}
    assert json.loads(json_with_flags([text], FLAGS, indent=2)) == [found]
