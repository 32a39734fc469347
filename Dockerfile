# syntax=docker/dockerfile:1
# Two stages: everything is installed with all tools at hand, then copied to where there are none. It adds less than
# 60 MB to its base.
#   docker build -t crrd:0.1.0 .
#   docker build --build-arg BASE_IMAGE=my-python:3.12 --build-arg SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) -t crrd .
# A tag can change. For an image that can be built again, name the base by its digest:
#   --build-arg BASE_IMAGE=python:3.13-slim@sha256:...   (docker buildx imagetools inspect python:3.13-slim shows it)
# Nothing but the package index is reached, and nothing but what locks/ names by hash is taken from it (`make lock`
# renews them).
ARG BASE_IMAGE=python:3.13-slim

FROM ${BASE_IMAGE} AS build
# Times inside the wheel: the same sources give the same wheel.
ARG SOURCE_DATE_EPOCH=1767225600
ENV SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH} PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY locks locks
# Removed: what only compilers, type checkers and tests read, and what no daemon uses: PyYAML's C parser (2.6 MB) and
# aiohttp's compiled websockets (2.2 MB).
RUN pip install --no-cache-dir --require-hashes -r locks/build.txt \
    && pip install --no-cache-dir --no-compile --ignore-installed --require-hashes --prefix /install -r locks/image.txt \
    && find /install -name '*.py[ix]' -delete -o -name '*.px[di]' -delete -o -name '*.h' -delete -o -name '_yaml.*.so' -delete \
    -o -path '*/aiohttp/_websocket/*.so' -delete -o -name '_testcapi.*.so' -delete
COPY pyproject.toml README.md LICENSE ./
COPY daemon daemon
COPY cri_stubs cri_stubs
COPY forecast forecast
RUN pip wheel --no-build-isolation --no-deps --no-index --wheel-dir /wheels . ./forecast \
    && pip install --no-compile --no-deps --no-index --prefix /install /wheels/*.whl \
    && find /install -name '*.pyi' -delete \
    && python -m compileall -q -o 2 --invalidation-mode unchecked-hash /install/lib/python*/site-packages/crrd*
# A read-only root takes no .pyc, and to compile at each start would cost the daemons 2 to 4 MB for good. So all that they
# import is compiled here, of Python's own modules too (the base has no .pyc). -B: no second .pyc for another -O.
RUN python -B -c "import sys; sys.path[:0] = sys.argv[2:]; import importlib.util, pathlib, py_compile, sysconfig; \
    import crrd.cli.main, crrd.cli.node, crrd.cli.manager, crrd.node.daemon, crrd.manager.daemon; \
    import yaml, cryptography.hazmat.backends.openssl; \
    root, lib = pathlib.Path(sys.argv[1]), pathlib.Path(sysconfig.get_path('stdlib')); \
    found = {pathlib.Path(each.__file__) for each in sys.modules.values() if getattr(each, '__file__', None)}; \
    source = {file: file for file in found if root in file.parents}; \
    source |= {file: pathlib.Path(root, lib.name, file.relative_to(lib)) for file in found if lib in file.parents}; \
    made = {file: importlib.util.cache_from_source(name, optimization=2) for file, name in source.items()}; \
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH; \
    [py_compile.compile(file, made[file], optimize=2, invalidation_mode=mode, doraise=True) for file in made \
    if file.suffix == '.py']" \
    /install/lib /install/lib/python*/site-packages

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="crrd" \
      org.opencontainers.image.description="Restarts single containers of running Kubernetes pods in place, on request" \
      org.opencontainers.image.licenses="Apache-2.0"
# One arena, prompt trimming and no docstrings keep the daemon small.
ENV MALLOC_ARENA_MAX=1 MALLOC_TRIM_THRESHOLD_=131072 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONOPTIMIZE=2
RUN pip uninstall --yes --root-user-action ignore pip
COPY --from=build /install /usr/local
# The manager runs as this user. The node daemon's manifest says root, which owns the CRI socket, and why.
USER 65532:65532
ENTRYPOINT ["crrd"]
CMD ["--help"]
