"""Which servers are reached through the proxy of the environment: as Go's httpproxy decides it, and so kubectl."""

import pytest

from crrd.kube.access.proxy import proxy_for
from crrd.lib.errors import ConfigurationError

PROXY = "http://proxy.example:3128"
NO_PROXY = (
    "foobar.com, .barbaz.net, *.wildcard.io, 192.168.1.1, 192.168.1.2:81, 192.168.1.3:80, 10.0.0.0/30, "
    "2001:db8::52:0:1, [2001:db8::52:0:2]:443, [2001:db8::52:0:3]:80, 2002:db8:a::45/64, :1, 10.1.0.0/99, 示例.com"
)


@pytest.mark.parametrize(
    ("host", "is_proxied"),
    [
        ("localhost", False),
        ("127.0.0.1", False),
        ("127.0.0.2", False),
        ("[::1]", False),
        ("[::ffff:127.0.0.1]", False),
        ("[::2]", True),
        ("192.168.1.1", False),
        ("[::ffff:192.168.1.1]", False),
        ("192.168.1.2", True),  # another port
        ("192.168.1.3", False),
        ("192.168.1.4", True),
        ("10.0.0.2", False),
        ("10.0.0.4", True),
        ("10.1.0.1", True),
        ("[2001:db8::52:0:1]", False),
        ("[2001:db8::52:0:2]", True),  # another port
        ("[2001:db8::52:0:3]", False),
        ("[2002:db8:a::123]", False),
        ("[fe80::424b:c8be:1643:a1b6]", True),
        ("barbaz.net", True),  # a leading dot: only subdomains
        ("www.barbaz.net", False),
        ("foobar.com", False),
        ("FOOBAR.com", False),
        ("www.foobar.com", False),
        ("foofoobar.com", True),
        ("baz.com", True),
        ("localhost.net", True),
        ("local.localhost", True),
        ("barbarbaz.net", True),
        ("wildcard.io", True),
        ("nested.wildcard.io", False),
        ("awildcard.io", True),
        ("www.xn--fsq092h.com", False),
    ],
)
@pytest.mark.parametrize("name", ["NO_PROXY", "no_proxy"])
def test_hosts(host: str, name: str, *, is_proxied: bool) -> None:
    environ = {"HTTP_PROXY": PROXY, name: NO_PROXY}
    assert proxy_for(f"http://{host}", environ) == (PROXY if is_proxied else "")
    assert proxy_for(f"http://{host}:80/prefix", environ) == (PROXY if is_proxied else "")
    assert proxy_for(f"http://{host}", {**environ, name: "other.example,*"}) == ""


@pytest.mark.parametrize(
    ("server", "environ", "proxy"),
    [
        ("https://api", {}, ""),
        ("https://api", {"HTTPS_PROXY": PROXY}, PROXY),
        ("https://api", {"https_proxy": PROXY}, PROXY),
        ("https://api", {"HTTPS_PROXY": PROXY, "https_proxy": "http://other"}, PROXY),
        ("https://api", {"HTTPS_PROXY": "", "https_proxy": PROXY}, PROXY),
        ("https://api", {"HTTP_PROXY": PROXY, "ALL_PROXY": PROXY}, ""),
        ("http://api", {"HTTPS_PROXY": PROXY}, ""),
        ("https://api", {"HTTPS_PROXY": "https://proxy"}, "https://proxy"),
        ("https://api", {"HTTPS_PROXY": "HTTPS://Proxy"}, "https://Proxy"),
        ("https://api", {"HTTPS_PROXY": "proxy:3128"}, "http://proxy:3128"),
        ("https://api", {"HTTPS_PROXY": "ann:secret@proxy"}, "http://ann:secret@proxy"),
        ("https://api:6443", {"HTTPS_PROXY": PROXY, "NO_PROXY": "api:443"}, PROXY),
        ("https://api", {"HTTPS_PROXY": PROXY, "NO_PROXY": "api:443"}, ""),
        ("https://api:6443", {"HTTPS_PROXY": PROXY, "NO_PROXY": "api:6443"}, ""),
        ("https://api", {"HTTPS_PROXY": PROXY, "NO_PROXY": "", "no_proxy": "api"}, ""),
    ],
)
def test_variables(server: str, environ: dict[str, str], proxy: str) -> None:
    assert proxy_for(server, environ) == proxy


@pytest.mark.parametrize("value", ["socks5://proxy", "http://", "http://proxy:99999", "http://ann:secret@", "pr oxy\n"])
def test_what_is_no_proxy(value: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        proxy_for("https://api", {"https_proxy": value})
    assert str(caught.value) == "https_proxy must be a URL that begins with http:// or https://, or HOST:PORT"
    assert proxy_for("http://api", {"https_proxy": value}) == "", "it is not for this server"
