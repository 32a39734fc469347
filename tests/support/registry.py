"""A registry on loopback that a test controls: it wants a password, does not answer, is slow, or off.

Containerd pulls from loopback by plain HTTP without configuration. CRI-O needs a registry with `location = "127.0.0.1"`
and `insecure = true` in its registries.conf. The images have one layer, that of an archive of the
node (`docker save`), and differ in a label.
"""

import asyncio
import base64
import hashlib
import json
import os
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

ARCHIVE = "CRRD_TEST_IMAGE_ARCHIVE"
"""An archive with a shell (`docker save`), on an existing cluster. Without it, tests with a registry are skipped."""
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_INDEX = "application/vnd.oci.image.index.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CHUNK = 1 << 16


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass
class Registry:
    """What the registry has, and how it answers."""

    layers: list[bytes]
    port: int = 0
    password: str = ""  # Of the user `crrd`; "" to let everybody pull
    silent: bool = False  # Whether it accepts connections, and answers only once this is False
    bytes_per_second: float = 0.0  # 0 for as fast as possible
    manifests: dict[str, bytes] = field(default_factory=dict)  # By tag and by digest
    blobs: dict[str, bytes] = field(default_factory=dict)
    pulls: list[str] = field(default_factory=list)  # Paths that were asked for
    _runner: web.AppRunner | None = None  # None while it is off

    def image(self, reference: str) -> str:
        """Return the name of an image here: by tag, or by digest."""
        return f"127.0.0.1:{self.port}/app{'@' if ':' in reference else ':'}{reference}"

    def push(self, *tags: str, index: bool = False) -> str:
        """Store one image under these tags. Return its digest. Images with other tags are other images.

        With `index`, the tags name an index of images for several platforms, which has this one.
        """
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Labels": {"tags": " ".join(tags)}, "Env": ["PATH=/bin:/usr/bin:/sbin"]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(each) for each in self.layers]},
        }
        parts = [(_CONFIG, json.dumps(config).encode()), *((_LAYER, each) for each in self.layers)]
        entries = [{"mediaType": kind, "digest": _digest(each), "size": len(each)} for kind, each in parts]
        self.blobs |= {_digest(each): each for _, each in parts}
        manifest = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": entries[0], "layers": entries[1:]}
        content = json.dumps(manifest).encode()
        if index:
            self.manifests[_digest(content)] = content
            platform = {"architecture": config["architecture"], "os": config["os"]}
            entry = {"mediaType": _MANIFEST, "digest": _digest(content), "size": len(content), "platform": platform}
            content = json.dumps({"schemaVersion": 2, "mediaType": _INDEX, "manifests": [entry]}).encode()
        for name in (*tags, _digest(content)):
            self.manifests[name] = content
        return _digest(content)

    def secret(self, password: str) -> dict[str, Any]:
        """Return a pull secret's data for the registry."""
        auth = base64.b64encode(f"crrd:{password}".encode()).decode()
        config = json.dumps({"auths": {f"127.0.0.1:{self.port}": {"auth": auth}}})
        return {".dockerconfigjson": base64.b64encode(config.encode()).decode()}

    async def start(self) -> None:
        """Listen, at the port of before if it was off."""
        app = web.Application()
        app.router.add_route("*", "/v2/{path:.*}", self.serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close all connections, and refuse others until `start`."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer as the OCI distribution specification has it."""
        self.pulls.append(request.path)
        while self.silent:
            await asyncio.sleep(0.1)
        wanted = "Basic " + base64.b64encode(f"crrd:{self.password}".encode()).decode()
        if self.password and request.headers.get("Authorization") != wanted:
            challenge = {"WWW-Authenticate": 'Basic realm="crrd"'}
            return web.json_response({"errors": [{"code": "UNAUTHORIZED"}]}, status=401, headers=challenge)
        if request.path == "/v2/":
            return web.json_response({})
        kind, _, name = request.path.removeprefix("/v2/app/").partition("/")
        content = {"manifests": self.manifests, "blobs": self.blobs}.get(kind, {}).get(name)
        if content is None:
            return web.json_response({"errors": [{"code": "MANIFEST_UNKNOWN"}]}, status=404)
        mime = json.loads(content)["mediaType"] if kind == "manifests" else "application/octet-stream"
        headers = {"Content-Type": mime, "Docker-Content-Digest": _digest(content), "Content-Length": str(len(content))}
        answer = web.StreamResponse(headers=headers)
        await answer.prepare(request)
        if request.method == "GET":
            for begin in range(0, len(content), _CHUNK):
                await answer.write(content[begin : begin + _CHUNK])
                if self.bytes_per_second and len(content) > _CHUNK:
                    await asyncio.sleep(_CHUNK / self.bytes_per_second)
        await answer.write_eof()
        return answer


@asynccontextmanager
async def registry() -> AsyncIterator[Registry]:
    """Run a registry. Skips the test if there is no archive for its images."""
    archive = os.environ.get(ARCHIVE)
    if not archive:
        pytest.skip(f"needs {ARCHIVE}")
    found = Registry(_layers(Path(archive)))
    await found.start()
    try:
        yield found
    finally:
        await found.stop()


def _layers(archive: Path) -> list[bytes]:
    with tarfile.open(archive) as tar:

        def read(name: str) -> bytes:
            member = tar.extractfile(name)
            assert member is not None, name
            return member.read()

        entry, *_ = json.loads(read("manifest.json"))  # the images of tests.support.images have the same files
        return [read(name) for name in entry["Layers"]]
