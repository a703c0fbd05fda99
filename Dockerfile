# reflectrl in a container. For CPUs, as it stands; for NVIDIA GPUs, with torch from the channel of a CUDA version:
#
#   docker build -t reflectrl .
#   docker build -t reflectrl:cuda --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu126 .
#   docker run --rm -v "$PWD/runs:/home/user/runs" reflectrl run taxi-demo
#
# The wheels of torch bring their own CUDA libraries, so the image of the system is the same for both.
ARG PYTHON=3.12
FROM python:${PYTHON}-slim

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=ray,serve,endpoint
ENV PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1 RAY_USAGE_STATS_ENABLED=0

WORKDIR /opt/reflectrl
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY src src
COPY benchmarks benchmarks
# The channel's versions are marked (2.13.0+cpu), which the constraint on torch allows.
RUN TORCH=$(grep '^torch==' constraints.txt) \
 && pip install --index-url "${TORCH_INDEX}" "${TORCH}" \
 && pip install --constraint constraints.txt ".[${EXTRAS}]" \
 && useradd --create-home user

USER user
WORKDIR /home/user
ENTRYPOINT ["reflectrl"]
CMD ["--help"]
