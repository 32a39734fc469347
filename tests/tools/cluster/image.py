"""The image of crrd for a cluster on this machine, from this Python and this checkout. It needs no builder and no base.

It has what the released image has (the Dockerfile's): a Python with the dependencies, and crrd as its entry point. The
files are this machine's own, so that a change is on a node within seconds.
"""

import importlib.metadata
import io
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.support.images import write_images

NAME = "docker.io/library/crrd:0.1.0"
"""The image of manifests/default."""
ROOT = Path(__file__).parents[3]
_HOME = "usr/local"
_OWN = (ROOT / "daemon" / "crrd", ROOT / "forecast" / "crrd_forecast", ROOT / "cri_stubs")
_UNUSED = {
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "ensurepip",
    "lib2to3",
    "site-packages",
    "dist-packages",
    "turtledemo",
}
_RUN = {
    "Entrypoint": [f"/{_HOME}/bin/python3", "-m", "crrd"],
    "Env": ["PATH=/usr/local/bin:/bin", "PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1"],
    "User": "65532:65532",
}


def write_crrd_image(target: Path) -> None:
    """Write the image's archive."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, source in _files():
            tar.add(source, name, recursive=False)
        folder = tarfile.TarInfo("tmp")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(folder)
    write_images(target, raw.getvalue(), {NAME: _RUN})


def _files() -> Iterator[tuple[str, Path]]:
    """Yield the name of each file in the image, and where it is here."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library, packages = f"{_HOME}/lib/{version}", f"{_HOME}/lib/{version}/site-packages"
    program = Path(sys.executable).resolve()
    found = {f"{_HOME}/bin/python3": program}
    stdlib = Path(sysconfig.get_path("stdlib"))
    found |= {f"{library}/{each.relative_to(stdlib)}": each for each in _below(stdlib, _UNUSED)}
    for each in _distributions("crrd-forecast", set()):
        for file in each.files or ():
            if (
                not str(file).startswith(("..", "/", "_editable", "__editable"))
                and (path := Path(str(file.locate()))).is_file()
            ):
                found[f"{packages}/{file}"] = path
    for package in _OWN:
        found |= {f"{packages}/{each.relative_to(package.parent)}": each for each in _below(package, set())}
    linked = [program, *(path for path in found.values() if ".so" in path.name)]
    yield from found.items()
    for path in _libraries(linked):
        yield str(path).lstrip("/"), path.resolve()


def _below(folder: Path, unused: set[str]) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if (
            path.is_file()
            and unused.isdisjoint(path.relative_to(folder).parts)
            and path.suffix != ".a"
            and ".opt-" not in path.name
        ):
            yield path


def _distributions(name: str, seen: set[str]) -> Iterator[importlib.metadata.Distribution]:
    """Yield a distribution and what it needs at run time, each once."""
    if name in seen:
        return
    seen.add(name)
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:  # for another Python or system
        return
    yield found
    for requirement in found.requires or ():
        if "extra ==" not in requirement and (match := re.match(r"[\w.-]+", requirement)):
            yield from _distributions(match[0].lower(), seen)


def _libraries(programs: Iterable[Path]) -> set[Path]:
    """Return the shared libraries that these programs and libraries load."""
    done = subprocess.run(["ldd", *map(str, programs)], check=False, capture_output=True, text=True)
    return {Path(path) for path in re.findall(r"(?:=> |^\t)(/\S+) \(0x", done.stdout, re.MULTILINE)}
