"""`crrd manager` as its user meets it: values that cannot work are told while flags are read."""

import pytest

from crrd.cli.main import build_parser
from crrd.cli.manager import manager_config
from crrd.lib.errors import ConfigurationError
from crrd.manager.gated import GATED_NAMESPACES
from tests.support.command import crrd

LABEL, LONG = "a" * 63, ".".join(["a" * 63] * 3 + ["a" * 61])
"""The longest label, and the longest name, of DNS."""
NAMES = ["10.0.0.1", "fd00::1", "crrd", "crrd.example", "CRRD.Example", "xn--grn-hoa.example", "*.crrd.example", LONG]
NO_NAMES = [
    *("", " ", "a b", "10.0.0.0/8", "10.0.0.256", "10.0.0", "fe80::1%eth0", "[fd00::1]", "crrd.example:443"),
    *("grün.example", "\u212arrd.example", "crrd_example", "crrd.example.", ".crrd", "crrd..example", "-crrd", "crrd-"),
    *("*", "*.", "*crrd.example", "a.*.example", "*.10.0.0.1", LABEL + "a", LONG + "a", "crrd.example\n", "a\udcff"),
]


def refused(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """The last line of the errors."""
    with pytest.raises(SystemExit) as ended:
        build_parser("manager").parse_args(["manager", *flags])
    assert ended.value.code == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_names_for_the_certificate() -> None:
    flags = [f"--certificate-name={name}" for name in NAMES]
    assert manager_config(build_parser("manager").parse_args(["manager", *flags])).names == tuple(NAMES)


@pytest.mark.parametrize("name", NO_NAMES)
def test_what_no_certificate_can_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "--certificate-name", "crrd.example", f"--certificate-name={name}")
    assert f"argument --certificate-name: {name!r} must be an IP address, or a DNS name in ASCII" in said


@pytest.mark.parametrize("name", ["", "a b", "Foo/Bar", "grün", "..", "-a", "\udcff"])
@pytest.mark.parametrize("flag", ["namespace", "service", "secret", "webhook-configuration"])
def test_what_no_object_can_be_called(flag: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"argument --{flag}: {name!r} must be at most" in refused(capsys, f"--{flag}={name}")


@pytest.mark.parametrize(
    ("longest", "flags"), [(LABEL, ("namespace", "service")), (LONG, ("secret", "webhook-configuration"))]
)
def test_how_long_names_may_be(longest: str, flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    build_parser("manager").parse_args(["manager", *(f"--{flag}={longest}" for flag in flags)])
    for flag in flags:
        assert f"--{flag}: '{longest}a' must be" in refused(capsys, f"--{flag}={longest}a")
    for flag in ("secret", "webhook-configuration"):
        build_parser("manager").parse_args(["manager", f"--{flag}=crrd.example"])


def test_the_slack_of_deadlines_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRRD_DEFAULT_DEADLINE_SLACK_SECONDS", "600")
    assert manager_config(build_parser("manager").parse_args(["manager"])).default_deadline_slack == 600


def test_what_pull_pods_request(monkeypatch: pytest.MonkeyPatch) -> None:
    assert manager_config(build_parser("manager").parse_args(["manager"])).pull_resources == ""
    monkeypatch.setenv("CRRD_PULL_RESOURCES", "cpu=50m,memory=64Mi")
    assert manager_config(build_parser("manager").parse_args(["manager"])).pull_resources == "cpu=50m,memory=64Mi"
    monkeypatch.setenv("CRRD_PULL_RESOURCES", "cpu=0.5")
    with pytest.raises(ConfigurationError, match=r"^CRRD_PULL_RESOURCES is 'cpu=0.5', but must be quantities of cpu"):
        build_parser("manager").parse_args(["manager"])


def test_who_restarts_containers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def by_patch(*flags: str) -> bool:
        return manager_config(build_parser("manager").parse_args(["manager", *flags])).via_patch

    assert not by_patch()
    assert by_patch("--via", "patch")
    monkeypatch.setenv("CRRD_VIA", "patch")
    assert by_patch()
    assert not by_patch("--via=daemon")
    assert "argument --via: 'auto' must be one of daemon, patch" in refused(capsys, "--via", "auto")
    monkeypatch.setenv("CRRD_VIA", "Patch")
    with pytest.raises(ConfigurationError, match=r"^CRRD_VIA is 'Patch', but must be one of daemon, patch"):
        by_patch()


def test_which_servers_may_be_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def addresses(*flags: str) -> tuple[str, ...]:
        return manager_config(build_parser("manager").parse_args(["manager", *flags])).judge_addresses

    assert addresses() == ()
    monkeypatch.setenv("CRRD_JUDGE_ADDRESSES", " https://A.example:443/ ,,http://*.b.example:9090/x")
    assert addresses() == ("https://a.example", "http://*.b.example:9090/x")
    assert addresses("--judge-address=http://c", "--judge-address", "http://[::1]") == ("http://c", "http://[::1]")
    said = refused(capsys, "--judge-address", "http://u:p@c")
    assert "argument --judge-address: 'http://u:p@c' must be an address like https://prometheus.example:9090" in said
    monkeypatch.setenv("CRRD_JUDGE_ADDRESSES", "http://a,http://*")
    with pytest.raises(ConfigurationError, match=r"^CRRD_JUDGE_ADDRESSES is 'http://\*', but must be an address like"):
        addresses()
    monkeypatch.setenv("CRRD_JUDGE_ADDRESSES", "")
    assert addresses() == ()


def test_a_name_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAMESPACE", "Foo/Bar")
    with pytest.raises(ConfigurationError, match=r"^POD_NAMESPACE is 'Foo/Bar', but must be at most 63"):
        build_parser("manager").parse_args(["manager"])


async def test_a_bad_name_is_told_in_a_line() -> None:
    ended = await crrd("manager", "--certificate-name", "grün.example")
    assert ended.code == 2
    assert ended.last_line.startswith("crrd manager: error: argument --certificate-name: 'grün.example' must be")


@pytest.mark.parametrize("file", ["/nonexistent", "/" + "x" * 300], ids=["absent", "a name too long for a file"])
def test_a_file_that_cannot_be_found(file: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^--client-ca-file: file /\w+ not found$"):
        manager_config(build_parser("manager").parse_args(["manager", "--client-ca-file", file]))


@pytest.mark.parametrize(("flags", "denies"), [([], False), (["warn"], False), (["deny"], True)])
def test_requests_for_nodes_without_a_daemon(flags: list[str], denies: bool) -> None:
    words = ["manager", *(f"--without-daemon={each}" for each in flags)]
    assert manager_config(build_parser("manager").parse_args(words)).deny_without_daemon is denies


@pytest.mark.parametrize("value", GATED_NAMESPACES)
def test_where_pods_get_the_readiness_gate(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    args = build_parser("manager").parse_args(["manager", f"--readiness-gate={value}"])
    assert manager_config(args).readiness_gate == value
    assert "must be one of labelled, all" in refused(capsys, f"--readiness-gate={value}x")
