# The three images of Espalier:  docker build --target operator -t localhost/espalier-operator:dev .
#
#   --target   operator (without torch), trainer, agent
#   BASE       a Debian with Python 3.11 or newer. For trainer and agent its /venv may contain torch and torchvision in
#              the versions of uv.lock: then torch is not downloaded
#   FLAVOUR    cpu or cuda: which build of torch is installed where BASE brings none
#   REVISION   the commit, for the label
#   EXTRAS     gavel: the operator gets the solvers that the scheduling policy gavel needs (SciPy, Clarabel)
#              otel: operator and trainer can export traces (the SDK of OpenTelemetry)
#
# Needs BuildKit. The secrets `ca` and `pip` are optional, for machines that use a proxy or a private package index.
# What only the build needs (pip, uv, hatchling, wheels) is mounted during a RUN, so no layer contains it. The layers
# that change least come first: base, torch (one layer, shared by trainer and agent), dependencies, our code.
ARG BASE=python:3.11-slim

# pip, uv and hatchling.
FROM $BASE AS tools
ARG UV_VERSION=0.13.9
ARG HATCHLING_VERSION=1.33.0
RUN --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=cache,target=/root/.cache/pip \
    python3 -m venv /tools && \
    /tools/bin/pip install --quiet --disable-pip-version-check uv==$UV_VERSION hatchling==$HATCHLING_VERSION
COPY hack/image/install /tools/

# The lock file as requirements, one file for each image, without torch and the packages that only torch needs.
FROM tools AS locked
ARG EXTRAS=
WORKDIR /src
COPY pyproject.toml uv.lock ./
COPY core/pyproject.toml core/
COPY operator/pyproject.toml operator/
COPY trainer-image/pyproject.toml trainer-image/
COPY agent-image/pyproject.toml agent-image/
COPY cli/pyproject.toml cli/
COPY lab/pyproject.toml lab/
RUN mkdir /locked && \
    export="/tools/bin/uv export --quiet --frozen --offline --no-dev --no-emit-workspace --no-annotate --no-header" && \
    for part in operator trainer agent; do \
      extras=; for extra in $EXTRAS; do \
        case $part-$extra in operator-*|trainer-otel) extras="$extras --extra $extra";; esac; \
      done; \
      $export --package espalier-$part $extras --prune torch --prune torchvision --output-file /locked/$part.txt || exit 1; \
    done && \
    $export --package espalier-trainer --no-hashes --output-file /locked/torch.txt

# Our own packages, one stage each: a change in one does not rebuild the images without it.
FROM tools AS core
COPY core /src
RUN cd /src && /tools/bin/python -m hatchling build -t wheel -d /wheels

FROM core AS operator-wheels
COPY operator /src
RUN cd /src && /tools/bin/python -m hatchling build -t wheel -d /wheels

# The trainer uses the laboratory's rewriting, the agent's image its policy server. Neither needs more of the laboratory
# than what the image has for itself.
FROM core AS lab-wheels
COPY lab /src
RUN cd /src && /tools/bin/python -m hatchling build -t wheel -d /wheels

FROM lab-wheels AS trainer-wheels
COPY trainer-image /src
RUN cd /src && /tools/bin/python -m hatchling build -t wheel -d /wheels

# The policy server also uses the operator's policies.
FROM lab-wheels AS agent-wheels
COPY operator /src
RUN cd /src && /tools/bin/python -m hatchling build -t wheel -d /wheels
COPY agent-image /src
RUN cd /src && /tools/bin/python -m hatchling build -t wheel -d /wheels

# Python with its library compiled and without installers, a user, and /venv.
FROM $BASE AS runtime
ENV PATH=/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/tmp
RUN [ -d /venv ] || python3 -m venv --without-pip /venv; \
    lib=$(/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))') && \
    rm -rf "$lib/ensurepip" /usr/share/python-wheels /usr/local/bin/pip* /venv/bin/pip* \
      "$lib"/site-packages/pip "$lib"/site-packages/pip-* /venv/lib/python3*/site-packages/pip /venv/lib/python3*/site-packages/pip-* && \
    /venv/bin/python -m compileall -q -j 0 -x '/(site-packages|dist-packages|tests?|idlelib|lib2to3|turtledemo)/' "$lib" && \
    echo 'espalier:x:65532:65532::/tmp:/usr/sbin/nologin' >>/etc/passwd && echo 'espalier:x:65532:' >>/etc/group
WORKDIR /app
LABEL org.opencontainers.image.vendor=Espalier org.opencontainers.image.licenses=Apache-2.0

FROM runtime AS torch
ARG FLAVOUR=cpu
RUN --mount=type=bind,from=tools,source=/tools,target=/tools \
    --mount=type=bind,from=locked,source=/locked,target=/locked \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    /tools/install torch $FLAVOUR

# ---- operator
FROM runtime AS operator-locked
RUN --mount=type=bind,from=tools,source=/tools,target=/tools \
    --mount=type=bind,from=locked,source=/locked,target=/locked \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=cache,target=/root/.cache/pip \
    /tools/install locked operator

FROM operator-locked AS operator
RUN --mount=type=bind,from=tools,source=/tools,target=/tools \
    --mount=type=bind,from=operator-wheels,source=/wheels,target=/wheels \
    /tools/install wheels
USER 65532:65532
ENTRYPOINT ["python", "-m", "espalier_operator"]
ARG REVISION=unknown
LABEL org.opencontainers.image.title=espalier-operator org.opencontainers.image.revision=$REVISION

# ---- trainer
FROM torch AS trainer-locked
RUN --mount=type=bind,from=tools,source=/tools,target=/tools \
    --mount=type=bind,from=locked,source=/locked,target=/locked \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=cache,target=/root/.cache/pip \
    /tools/install locked trainer

FROM trainer-locked AS trainer
RUN --mount=type=bind,from=tools,source=/tools,target=/tools \
    --mount=type=bind,from=trainer-wheels,source=/wheels,target=/wheels \
    /tools/install wheels
USER 65532:65532
ENTRYPOINT ["python", "-m", "espalier_trainer"]
ARG REVISION=unknown
LABEL org.opencontainers.image.title=espalier-trainer org.opencontainers.image.revision=$REVISION

# ---- agent
FROM torch AS agent-locked
RUN --mount=type=bind,from=tools,source=/tools,target=/tools \
    --mount=type=bind,from=locked,source=/locked,target=/locked \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=cache,target=/root/.cache/pip \
    /tools/install locked agent

FROM agent-locked AS agent
RUN --mount=type=bind,from=tools,source=/tools,target=/tools \
    --mount=type=bind,from=agent-wheels,source=/wheels,target=/wheels \
    /tools/install wheels
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["python", "-m", "espalier_agent"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8080"]
ARG REVISION=unknown
LABEL org.opencontainers.image.title=espalier-agent org.opencontainers.image.revision=$REVISION
