"""The manager's cache of requests: it keeps no request that needs no more work."""

from dataclasses import replace

from crrd.core.api.types import RequestPhase, Status
from crrd.manager.cache import ManagerCache
from tests.support.worlds import request

SETTLED = replace(request(uid="r1"), active=False, status=Status(RequestPhase.COMPLETED), resource_version="20")


def test_a_settled_request_is_forgotten() -> None:
    changed: list[str] = []
    cache = ManagerCache(changed.append, lambda _: None, lambda: None, lambda _: False)
    cache.requests.put(request(uid="r1"))
    assert [each.uid for each in cache.requests_of("default/web")] == ["r1"]
    cache.requests.put(SETTLED)
    assert cache.requests_of("default/web") == []
    assert not cache.requests.groups
    assert changed == ["default/web"] * 2
    cache.requests.put(replace(request(uid="r1"), resource_version="15"))
    assert not cache.requests.groups, "a late event does not bring it back"
    cache.requests.put(replace(SETTLED, ttl_seconds=60, resource_version="30"))
    assert tuple(cache.requests.groups) == ("default/web",), "somebody has given it a time to live"


def test_settled_requests_of_a_list_are_not_kept() -> None:
    cache = ManagerCache(lambda _: None, lambda _: None, lambda: None, lambda _: False)
    cache.requests.replace([replace(SETTLED, uid=str(number)) for number in range(9)] + [request(uid="live")], "50")
    assert [each.uid for each in cache.requests_of("default/web")] == ["live"]
    cache.requests.replace([SETTLED], "60")
    assert not cache.requests.groups
