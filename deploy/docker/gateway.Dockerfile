# Image of the gateway: HTTP, tokenization, streaming. No torch.
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
RUN --mount=type=bind,from=wheel,source=/install,target=/mnt \
    /mnt/uv pip install --system --no-cache --compile-bytecode --constraint /mnt/constraints.txt \
        "$(echo /mnt/*.whl)[gateway]"

ARG VERSION=unknown
LABEL org.opencontainers.image.title="taco-gateway" \
      org.opencontainers.image.description="TACO's gateway: the OpenAI API over HTTP, and the Inference service over gRPC" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
ENV HOME=/tmp \
    HF_HOME=/models-cache \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 8000 7200 9000
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:9000/livez', timeout=3)"]
ENTRYPOINT ["taco_llm"]
CMD ["gateway", "demo", "--scheduler", "scheduler:7100", "--admin-port", "9000"]
