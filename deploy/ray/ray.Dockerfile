# Image of every node of a Ray cluster. Ray needs the same version of Python and Ray on all nodes, so one
# image holds all services. The first stages are those of docker/worker.Dockerfile.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS installer
COPY constraints.txt /install/
RUN pip install --no-cache-dir --constraint /install/constraints.txt uv \
    && cp /usr/local/bin/uv /install/

FROM installer AS wheel
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY kernels kernels
RUN PYTHONPATH=kernels python -m taco_kernels.build
COPY . .
RUN uv build --wheel --out-dir /install

FROM ${PYTHON_IMAGE}
# Triton compiles a C launcher for each kernel at its first run, so the image needs a compiler.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
# HOME is /tmp, which is writable when the root file system is read-only. Ray writes there, too.
RUN useradd --uid 10001 --user-group --no-log-init --no-create-home --home-dir /tmp \
        --shell /usr/sbin/nologin taco \
    && install --directory --owner=taco --group=taco /models-cache
RUN --mount=type=bind,from=installer,source=/install,target=/mnt \
    /mnt/uv pip install --system --no-cache --compile-bytecode --constraint /mnt/constraints.txt \
        torch
# Plain ray, not ray[default]: without the dashboard, no port accepts jobs from the network.
RUN --mount=type=bind,from=wheel,source=/install,target=/mnt \
    /mnt/uv pip install --system --no-cache --compile-bytecode --constraint /mnt/constraints.txt \
        "$(echo /mnt/*.whl)[gateway,scheduler,gpu,draft,ray]"

ARG VERSION=unknown
LABEL org.opencontainers.image.title="taco-ray" \
      org.opencontainers.image.description="TACO on a Ray cluster: a node of it" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
ENV HOME=/tmp \
    HF_HOME=/models-cache \
    TRITON_CACHE_DIR=/models-cache/triton \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    RAY_USAGE_STATS_ENABLED=0 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 8000 7100 6379
ENTRYPOINT ["taco_llm"]
CMD ["serve", "demo", "--distributed-executor-backend", "ray", "--num-threads", "1"]
