# Image of the CPU worker.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

# These two stages are the same in every Dockerfile, so a builder runs them once: the installer, and one
# wheel of all services with the CPU kernels inside.
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
# HOME is /tmp, which is writable when the root file system is read-only.
RUN useradd --uid 10001 --user-group --no-log-init --no-create-home --home-dir /tmp \
        --shell /usr/sbin/nologin taco \
    && install --directory --owner=taco --group=taco /models-cache
# torch has its own layer: it is most of the image and rarely changes.
ARG UV_TORCH_BACKEND=cpu
RUN --mount=type=bind,from=installer,source=/install,target=/mnt \
    /mnt/uv pip install --system --no-cache --compile-bytecode --constraint /mnt/constraints.txt \
        torch
RUN --mount=type=bind,from=wheel,source=/install,target=/mnt \
    /mnt/uv pip install --system --no-cache --compile-bytecode --constraint /mnt/constraints.txt \
        "$(echo /mnt/*.whl)[worker]"

ARG VERSION=unknown
LABEL org.opencontainers.image.title="taco-worker-cpu" \
      org.opencontainers.image.description="TACO's worker for CPUs: runs the model" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
ENV HOME=/tmp \
    HF_HOME=/models-cache \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 9000
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:9000/livez', timeout=3)"]
ENTRYPOINT ["taco_llm"]
CMD ["worker", "demo", "--scheduler", "scheduler:7100", "--device", "cpu", "--admin-port", "9000"]
