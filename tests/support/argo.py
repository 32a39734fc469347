"""Runs the scripts of manifests/integrations/argocd-cm.yaml as Argo CD does: Lua 5.1 with few of its libraries."""

from pathlib import Path
from typing import Any

import yaml
from lupa.lua51 import LuaRuntime, lua_type

FILE = Path(__file__).parents[2] / "manifests" / "integrations" / "argocd-cm.yaml"
Json = dict[str, Any]
SCRIPTS: dict[str, str] = yaml.safe_load(FILE.read_text(encoding="utf-8"))["data"]
"""The scripts by their keys in Argo CD's ConfigMap."""
PREFIX = "resource.customizations"
_LIBRARIES = """
local given = {time = os.time, date = os.date}
for name in pairs(_G) do
  if type(_G[name]) == "table" and name ~= "_G" and name ~= "table" and name ~= "package" then _G[name] = nil end
end
getmetatable("").__index = nil
package.loaded.os = nil
package.preload.os = function() return given end
"""
"""Leaves what Argo CD's `runLua` opens: base, `table`, `package`, and by `require("os")` two functions."""


def run(script: str, obj: Json) -> Any:
    """What a script returns for an object. Raises LuaError."""
    lua = LuaRuntime(unpack_returned_tuples=True)
    lua.execute(_LIBRARIES)
    lua.globals().obj = lua.table_from(obj, recursive=True)
    return _as_json(lua.execute(script))


def _as_json(value: Any) -> Any:
    """A Lua value as gopher-json encodes it: a table without entries is a list."""
    if lua_type(value) != "table":
        return value
    if all(isinstance(key, int) for key in value):
        return [_as_json(value[key]) for key in sorted(value)]
    return {key: _as_json(each) for key, each in value.items()}


def health(obj: Json) -> Json:
    """The health that Argo CD shows for an object."""
    found: Json = run(SCRIPTS[f"{PREFIX}.health.{_key(obj)}"], obj)
    return found


def actions(obj: Json) -> dict[str, bool]:
    """The actions that Argo CD offers for an object, and whether they can be chosen."""
    found: dict[str, Json] = run(_actions(obj)["discovery.lua"], obj)
    return {name: not each["disabled"] for name, each in found.items()}


def act(obj: Json, action: str) -> Any:
    """What an action returns: the changed object, or a list of objects to create."""
    (script,) = [each["action.lua"] for each in _actions(obj)["definitions"] if each["name"] == action]
    made = run(script, obj)
    return made if isinstance(made, list) else _cleaned(made, obj)


def _cleaned(changed: Any, before: Any) -> Any:
    """A changed object with the empty maps that it had: for Lua, these are the same as empty lists."""
    if isinstance(changed, dict) and isinstance(before, dict):
        return {key: _cleaned(value, before.get(key)) for key, value in changed.items()}
    return before if changed == [] and isinstance(before, dict) else changed


def _actions(obj: Json) -> Json:
    found: Json = yaml.safe_load(SCRIPTS[f"{PREFIX}.actions.{_key(obj)}"])
    return found


def _key(obj: Json) -> str:
    group, _, _ = obj["apiVersion"].rpartition("/")
    return f"{group}_{obj['kind']}" if group else str(obj["kind"])
