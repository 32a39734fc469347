"""Which addresses the manager may ask: what is allowed, and what an attacker tries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crrd.core.judge.addresses import allowed, read_address

ALLOW = (
    "https://prometheus.monitoring.svc:9090",
    "http://metrics.example/team",
    "https://*.thanos.example",
    "http://10.0.0.1:9090",
    "http://[fd00::1]:9090",
    "https://[::1]",
)
ALLOWED = [
    "https://prometheus.monitoring.svc:9090",
    "https://prometheus.monitoring.svc:9090/",
    "HTTPS://Prometheus.Monitoring.SVC:9090",
    "https://prometheus.monitoring.svc:9090/any/prefix",
    "http://metrics.example/team",
    "http://metrics.example:80/team/",
    "http://metrics.example/team/a",
    "https://a.thanos.example",
    "https://a.b.thanos.example:443/x",
    "http://10.0.0.1:9090",
    "http://[fd00::1]:9090",
    "http://[FD00:0:0:0:0:0:0:1]:9090/a",
    "https://[0:0:0:0:0:0:0:1]:443",
]
OTHERS = [
    "http://prometheus.monitoring.svc:9090",  # another scheme
    "https://prometheus.monitoring.svc",  # another port
    "https://prometheus.monitoring.svc:909",
    "https://prometheus.monitoring:9090",
    "https://xprometheus.monitoring.svc:9090",
    "https://prometheus.monitoring.svc.evil.example:9090",
    "https://evil.example:9090/prometheus.monitoring.svc:9090",
    "https://evil.example:9090/@prometheus.monitoring.svc:9090",
    "http://metrics.example",  # outside of the prefix
    "http://metrics.example/teams",
    "http://metrics.example/Team",
    "http://metrics.example/other/team",
    "http://metrics.example:8080/team",
    "https://metrics.example/team",
    "https://metrics.example:80/team",
    "https://thanos.example",  # the domain itself is not below it
    "https://xthanos.example",
    "https://a.thanos.example.evil.example",
    "https://evil.example/.thanos.example",
    "http://10.0.0.10:9090",
    "http://10.0.0.2:9090",
    "http://[fd00::2]:9090",
    "http://[::ffff:10.0.0.1]:9090",  # IPv4 as IPv6 is another way to the same host
    "http://localhost:9090",
    "http://127.0.0.1",
    "http://169.254.169.254",
    "https://kubernetes.default.svc",
]
NO_ADDRESSES = [
    "",
    " ",
    "prometheus.monitoring.svc:9090",
    "//prometheus.monitoring.svc:9090",
    "https:prometheus.monitoring.svc:9090",
    "https:/prometheus.monitoring.svc:9090",
    "https:///prometheus.monitoring.svc:9090",
    "https:\\\\prometheus.monitoring.svc:9090",
    "https://",
    "https://:9090",
    "ftp://prometheus.monitoring.svc:9090",
    "file:///etc/passwd",
    "unix:///run/containerd/containerd.sock",
    "https+unix://prometheus.monitoring.svc:9090",
    " https://prometheus.monitoring.svc:9090",
    "https://prometheus.monitoring.svc:9090 ",
    "https://prometheus.monitoring.svc:9090\n",
    "https://prometheus.monitoring.svc:9090\r\nHost: evil.example",
    "https://prometheus.monitoring.svc:9090\x00.evil.example",
    "https://prometheus.monitoring.svc\t:9090",
    "https://prometheus.monitoring.svc@evil.example:9090",  # userinfo
    "https://prometheus.monitoring.svc:9090@evil.example",
    "https://user:password@prometheus.monitoring.svc:9090",
    "https://@prometheus.monitoring.svc:9090",
    "https://evil.example\\@prometheus.monitoring.svc:9090",
    "https://prometheus.monitoring.svc:9090\\@evil.example",
    "https://evil.example#@prometheus.monitoring.svc:9090",
    "https://evil.example?@prometheus.monitoring.svc:9090",
    "https://evil.example;@prometheus.monitoring.svc:9090",
    "https://prometheus.monitoring.svc:9090?",
    "https://prometheus.monitoring.svc:9090/?query=up",
    "https://prometheus.monitoring.svc:9090/#",
    "https://prometheus.monitoring.svc.:9090",  # a dot at the end
    "https://a.thanos.example.",
    "https://prometheus..monitoring.svc:9090",
    "https://.thanos.example",
    "https://*.thanos.example",
    "https://-a.thanos.example",
    "https://a_b.thanos.example",
    f"https://{'a' * 64}.thanos.example",
    f"https://{'a.' * 130}thanos.example",
    "https://prometheus.monitoring.svc:",  # ports
    "https://prometheus.monitoring.svc:0",
    "https://prometheus.monitoring.svc:09090",
    "https://prometheus.monitoring.svc:65536",
    "https://prometheus.monitoring.svc:99999",
    "https://prometheus.monitoring.svc:9090:9090",
    "https://prometheus.monitoring.svc:+9090",
    "https://prometheus.monitoring.svc:-1",
    "https://prometheus.monitoring.svc:\u0669090",
    "http://metrics.example/team/../admin",  # paths
    "http://metrics.example/team/..",
    "http://metrics.example/team/./../admin",
    "http://metrics.example/team/.",
    "http://metrics.example/team//admin",
    "http://metrics.example//team",
    "http://metrics.example/team/..;/admin",
    "http://metrics.example/team\\..\\admin",
    "http://metrics.example/team/%2e%2e/admin",
    "http://metrics.example/team%2f..%2fadmin",
    "http://metrics.example/%74eam",
    "https://prometheus%2emonitoring.svc:9090",
    "https://%70rometheus.monitoring.svc:9090",
    "https://evil.example%00.thanos.example",
    "https://ev\u0131l.thanos.example",  # other letters, and what becomes ASCII by IDNA
    "https://gr\u00fcn.thanos.example",
    "https://prometheus\u3002monitoring.svc:9090",
    "https://prometheus.monitoring\uff0esvc:9090",
    "https://prometheus.monitoring.svc\uff0f.thanos.example",
    "https://\u212a.thanos.example",
    "http://10.0.0.1\u2024:9090",
    "http://10.0.1:9090",  # old forms of IPv4 addresses
    "http://167772161:9090",
    "http://0x0a000001:9090",
    "http://10.0.0.0x1:9090",
    "http://012.0.0.1:9090",
    "http://10.0.0.256:9090",
    "http://10.0.0.1.:9090",
    "http://[fd00::1%25eth0]:9090",  # IPv6
    "http://[fd00::1%eth0]:9090",
    "http://[fd00::1:9090",
    "http://fd00::1:9090",
    "http://[fd00::1]9090",
    "http://[]:9090",
    "http://[10.0.0.1]:9090",
    "http://[v1.fd00]:9090",
    "http://[fd00::1].evil.example:9090",
]


@pytest.mark.parametrize("address", ALLOWED)
def test_what_is_allowed(address: str) -> None:
    assert allowed(address, ALLOW) == ""
    assert allowed(address, ()) != ""


@pytest.mark.parametrize("address", OTHERS)
def test_what_is_another_address(address: str) -> None:
    why = allowed(address, ALLOW)
    assert why.startswith(f"the manager may not ask {read_address(address)}: ")
    assert why.endswith("flag --judge-address")


@pytest.mark.parametrize("address", NO_ADDRESSES)
def test_what_no_parser_is_trusted_with(address: str) -> None:
    assert allowed(address, [*ALLOW, "http://metrics.example"]).startswith("the address ")
    with pytest.raises(
        ValueError, match=r"^an address like https://prometheus\.example:9090/prefix: http or https, a DN"
    ):
        read_address(address)


@pytest.mark.parametrize("address", [each for each in NO_ADDRESSES if "*" not in each])
def test_what_is_no_entry_of_the_list(address: str) -> None:
    with pytest.raises(ValueError, match=r"a DNS name in ASCII \(or \*\.DOMAIN\) without"):
        read_address(address, wildcard=True)


@pytest.mark.parametrize(
    "entry", ["http://*", "http://*.", "http://**.example", "http://a.*.example", "http://*.0.0.1"]
)
def test_what_stands_for_too_much(entry: str) -> None:
    with pytest.raises(ValueError, match="an address like"):
        read_address(entry, wildcard=True)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("HTTP://A.Example:80/", "http://a.example"),
        ("https://a.example:80/P/", "https://a.example:80/P"),
        ("https://[FD00:0::1]:443", "https://[fd00::1]"),
        ("http://a.example/api/v1/http:prometheus:9090/proxy", "http://a.example/api/v1/http:prometheus:9090/proxy"),
    ],
)
def test_how_an_address_is_written(given: str, shown: str) -> None:
    assert str(read_address(given)) == shown


LABELS = st.from_regex(r"[a-z]([-a-z0-9]{0,5}[a-z0-9])?", fullmatch=True)
HOSTS = st.one_of(
    st.lists(LABELS, min_size=1, max_size=4).map(".".join),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(lambda each: f"[{each}]"),
)
SEGMENTS = st.text("aB0-_~:@+=,", min_size=1, max_size=4)
PATHS = st.lists(SEGMENTS, max_size=3).map(lambda parts: "".join(f"/{each}" for each in parts))
ADDRESSES = st.builds(
    lambda scheme, host, port, path: f"{scheme}://{host}{port and f':{port}'}{path}",
    st.sampled_from(["http", "https"]),
    HOSTS,
    st.one_of(st.just(""), st.integers(1, 65535).map(str)),
    PATHS,
)


@given(ADDRESSES, ADDRESSES)
def test_an_entry_allows_its_own_addresses_and_no_other_host(one: str, other: str) -> None:
    entry, asked = read_address(one), read_address(other)
    assert read_address(str(entry)) == entry
    assert allowed(one, [one]) == ""
    assert allowed(f"{entry!s}/more", [one]) == ""
    if not allowed(other, [one]):
        assert (asked.scheme, asked.host, asked.port) == (entry.scheme, entry.host, entry.port)
        assert f"{asked.path}/".startswith(f"{entry.path}/")


@given(st.lists(LABELS, min_size=1, max_size=3), st.lists(LABELS, min_size=1, max_size=3))
def test_a_wildcard_stands_for_the_names_below_it(domain: list[str], name: list[str]) -> None:
    below = name[-len(domain) :] == domain and len(name) > len(domain)
    assert (allowed(f"http://{'.'.join(name)}", [f"http://*.{'.'.join(domain)}"]) == "") is below


@given(st.text(max_size=40), st.text("abc.:/@\\?#%[]*0x9 \n", max_size=30))
def test_no_text_raises_another_error(anything: str, close: str) -> None:
    for given_text in (anything, f"http://{close}", f"https://prometheus.monitoring.svc:9090{close}"):
        if not allowed(given_text, ALLOW):
            assert str(read_address(given_text)).startswith(("https://", "http://"))
