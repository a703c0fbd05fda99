#!/usr/bin/env bash
# For the day when a GPU is at hand, on a machine without a network.
#
#   scripts/gpu_day.sh prepare [3.12]   # here, with a network: wheels for that machine's Python, into .wheels/
#   scripts/gpu_day.sh run RESULTS ...  # there, in a copy of this checkout with .wheels/: further words go to benchmarks.gpu
#
# That machine has torch and transformers (every image for GPUs has them); what it may lack is listed here.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
LACKING=(gymnasium farama-notifications peft tyro docstring-parser typeguard pathspec rich hypothesis sortedcontainers
  pytest pytest-xdist pytest-timeout execnet)

case "${1:-}" in
prepare)
  version=${2:-3.12}
  rm -rf .wheels && mkdir .wheels
  for package in "${LACKING[@]}"; do
    $PYTHON -m pip download --quiet --no-deps --only-binary=:all: --python-version "$version" --implementation cp \
      --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 --constraint constraints.txt --dest .wheels "$package"
  done
  # The wheel's code is not used (PYTHONPATH has src in front of it); its entry points are.
  $PYTHON -m pip wheel --quiet --no-deps --wheel-dir .wheels .
  ls -s .wheels
  ;;
run)
  results=${2:?where do results go?}
  shift 2
  site=$(mktemp -d)
  $PYTHON -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --target "$site" .wheels/*.whl
  export PYTHONPATH=$PWD/src:$site HF_HUB_OFFLINE=1
  exec $PYTHON -m benchmarks.gpu "$results" "$@"
  ;;
*)
  sed -n '2,6s/^# \{0,1\}//p' "$0" >&2
  exit 2
  ;;
esac
