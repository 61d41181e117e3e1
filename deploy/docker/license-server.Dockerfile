# Image of the license server. No torch.
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
    && install --directory --owner=taco --group=taco /var/lib/taco-license
RUN --mount=type=bind,from=wheel,source=/install,target=/mnt \
    /mnt/uv pip install --system --no-cache --compile-bytecode --constraint /mnt/constraints.txt \
        "$(echo /mnt/*.whl)[license]"

ARG VERSION=unknown
LABEL org.opencontainers.image.title="taco-license-server" \
      org.opencontainers.image.description="TACO's license server: which GPUs may serve" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
ENV HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 10080
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import socket; socket.create_connection(('127.0.0.1', 10080), timeout=3)"]
ENTRYPOINT ["taco_llm"]
CMD ["license", "serve", "--data-dir", "/var/lib/taco-license"]
