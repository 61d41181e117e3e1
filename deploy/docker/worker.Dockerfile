# The worker for NVIDIA GPUs. The base is the slim one, since torch's wheels bring CUDA along: an
# image of NVIDIA's would hold it twice. The driver comes from the host (NVIDIA's container toolkit).
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

# These two stages are the same in every Dockerfile, so that a builder makes them once: the installer,
# and one wheel of all services with the CPU kernels inside.
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
# Triton compiles a small C launcher for each kernel when it first runs.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
# No home but /tmp, which is writable where the root file system is not.
RUN useradd --uid 10001 --user-group --no-log-init --no-create-home --home-dir /tmp \
        --shell /usr/sbin/nologin taco \
    && install --directory --owner=taco --group=taco /models-cache
# torch first and in a layer of its own: it is nearly all of the image, and changes seldom.
RUN --mount=type=bind,from=installer,source=/install,target=/mnt \
    /mnt/uv pip install --system --no-cache --compile-bytecode --constraint /mnt/constraints.txt \
        torch
RUN --mount=type=bind,from=wheel,source=/install,target=/mnt \
    /mnt/uv pip install --system --no-cache --compile-bytecode --constraint /mnt/constraints.txt \
        "$(echo /mnt/*.whl)[gpu]"

ARG VERSION=unknown
LABEL org.opencontainers.image.title="taco-worker" \
      org.opencontainers.image.description="TACO's worker for NVIDIA GPUs: runs the model" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
ENV HOME=/tmp \
    HF_HOME=/models-cache \
    TRITON_CACHE_DIR=/models-cache/triton \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 9000
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:9000/livez', timeout=3)"]
ENTRYPOINT ["taco_llm"]
CMD ["worker", "demo", "--scheduler", "scheduler:7100", "--device", "cuda", "--admin-port", "9000"]
