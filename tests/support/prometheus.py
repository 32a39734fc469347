"""A real Prometheus on loopback (Debian's `prometheus`) with this project's rules, for one test."""

import asyncio
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

MONITORING = Path(__file__).parents[2] / "manifests" / "monitoring"
PATIENCE = 60.0
SCRAPE_SECONDS = 1


def missing() -> str:
    """Return why Prometheus cannot be started, or ""."""
    absent = [name for name in ("prometheus", "promtool") if shutil.which(name) is None]
    return f"not installed: {', '.join(absent)} (apt-get install prometheus)" if absent else ""


@dataclass(frozen=True)
class Panel:
    """One panel of the dashboard, with its variables replaced."""

    title: str
    kind: str
    unit: str
    queries: tuple[tuple[str, str], ...]  # PromQL and legend
    place: tuple[int, int, int, int]  # x, y, width and height on Grafana's grid


def panels(rate_interval: str = "5m") -> list[Panel]:
    """Return the dashboard's panels for all instances. The heading of a row is a panel without queries."""
    found = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))["panels"]
    filled = []
    for panel in found:
        queries = tuple(
            (
                target["expr"].replace("$__rate_interval", rate_interval).replace("$instance", ".+"),
                "" if target["legendFormat"] == "__auto" else target["legendFormat"],
            )
            for target in panel.get("targets", ())
        )
        at = panel["gridPos"]
        unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit", "")
        filled.append(Panel(panel["title"], panel["type"], unit, queries, (at["x"], at["y"], at["w"], at["h"])))
    return filled


class Prometheus:
    """Scrapes these jobs (name -> addresses by instance) once a second, until the block ends."""

    def __init__(self, folder: Path, jobs: Mapping[str, Mapping[str, str]]) -> None:
        self._folder = folder
        self._jobs = jobs
        self._process: asyncio.subprocess.Process | None = None
        self._session: aiohttp.ClientSession | None = None
        self.url = ""  # Known inside the block

    async def __aenter__(self) -> "Prometheus":
        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._folder / "prometheus.yaml"
        config.write_text(yaml.safe_dump(self._config()), encoding="utf-8")
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={self._folder / 'data'}",
                "--web.listen-address=127.0.0.1:0",
                "--enable-feature=exemplar-storage",
                stdout=log,
                stderr=log,
            )
        self._session = aiohttp.ClientSession()
        try:
            await self._ready()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()

    async def api(self, path: str, **parameters: str) -> Any:
        """Return the data of one of its API's pages."""
        assert self._session is not None
        async with self._session.get(f"{self.url}/api/v1/{path}", params=parameters) as answer:
            found = await answer.json()
        assert found["status"] == "success", f"{path} {parameters}: {found}"
        return found["data"]

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the current samples of an expression, except NaN."""
        result: Sequence[dict[str, Any]] = (await self.api("query", query=expression))["result"]
        return [sample for sample in result if sample["value"][1] != "NaN"]

    async def value(self, expression: str) -> float:
        """Return the sum of an expression's samples, or 0 if there are none."""
        return sum(float(sample["value"][1]) for sample in await self.query(expression))

    async def until(self, expression: str, condition: Callable[[float], bool]) -> None:
        """Wait until the sum of an expression's samples meets the condition."""
        last = 0.0
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while not condition(last := await self.value(expression)):
                    await asyncio.sleep(SCRAPE_SECONDS / 4)
                return
        raise AssertionError(f"not within {PATIENCE:g} s: {expression}, which is {last:g}")

    async def _ready(self) -> None:
        assert self._session is not None
        async with asyncio.timeout(PATIENCE):
            while True:
                assert self._process is not None
                log = (self._folder / "prometheus.log").read_text()
                if self._process.returncode is not None:
                    raise AssertionError(log[-2000:])
                if found := re.search(r'"Listening on" address=(\S+)', log):
                    self.url = f"http://{found[1]}"
                    async with self._session.get(f"{self.url}/-/ready") as answer:
                        if answer.status == 200:
                            return
                await asyncio.sleep(0.05)

    def _config(self) -> dict[str, Any]:
        jobs = [
            {
                "job_name": job,
                "static_configs": [
                    {"targets": [address], "labels": {"instance": instance}} for instance, address in targets.items()
                ],
            }
            for job, targets in self._jobs.items()
        ]
        interval = f"{SCRAPE_SECONDS}s"
        return {
            "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
            "rule_files": [str(MONITORING / "rules" / "*.yaml")],
            "scrape_configs": jobs,
        }
