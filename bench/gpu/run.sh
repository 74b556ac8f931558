#!/usr/bin/env bash
# All tests and benchmarks of the GPU lane in one command, in less than nine minutes, without a network.
#
#   bench/gpu/run.sh [WHEELS] [options of python -m bench.gpu.run]
#
# Needs Python 3.11 or newer with torch (CUDA), triton, transformers and pytest, g++ and an NVIDIA driver. WHEELS, or the variable
# BATON_GPU_WHEELS, is a folder of wheels for what else is missing (bench/gpu/wheels.txt lists it); they go to a folder
# of their own, nothing is installed. Exits with 0 when all ran and no target was missed, 1 when not, 2 when it cannot run.
set -euo pipefail
total_seconds=530 # with what comes before the sections: nine minutes, and some seconds to write the results
from=$PWD
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
PATH="$(dirname "$("$python" -c 'import sys; print(sys.executable)')"):$PATH" # its ninja, which FlashInfer calls
export PATH PYTHONUNBUFFERED=1

wheels=${BATON_GPU_WHEELS:-}
unset BATON_GPU_WHEELS # workers refuse BATON_ variables that they do not know
if [[ $# -gt 0 && $1 != --* ]]; then
    wheels=$1
    shift
fi
"$python" kernels/baton_kernels/build.py >&2 & # beside the wheels
building=$! site=
trap 'kill $building 2>/dev/null || true; rm -rf ${site:+"$site"}' EXIT
export PYTHONPATH="$PWD:$PWD/kernels:$PWD/protos${PYTHONPATH:+:$PYTHONPATH}"
if [[ -n $wheels ]]; then
    [[ $wheels = /* ]] || wheels=$from/$wheels
    [[ -d $wheels ]] || { echo "bench/gpu/run.sh: $wheels is no folder of wheels" >&2; exit 2; }
    site=$(mktemp -d "${TMPDIR:-/tmp}/baton-wheels-XXXXXX")
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" "$wheels"/*.whl || exit 2
    export PYTHONPATH="$PYTHONPATH:$site"
fi
wait "$building" || exit 2
building=
"$python" - <<'CHECK' || exit 2
import importlib, importlib.util, sys
heavy = "torch triton transformers"
light = "numpy safetensors tokenizers pytest pytest_asyncio pytest_timeout grpc grpc_status grpc_health.v1 grpc_reflection google.protobuf opentelemetry.sdk.trace opentelemetry.exporter.otlp.proto.grpc.trace_exporter msgspec blake3 starlette httptools uvloop llguidance jinja2 prometheus_client typer rich"
missing = [f"{name} is not there" for name in heavy.split() if importlib.util.find_spec(name) is None]
for name in light.split():  # imported, because what one of them needs may be missing too
    try:
        importlib.import_module(name)
    except ImportError as error:
        missing.append(f"{name}: {error}")
if missing:
    sys.exit("bench/gpu/run.sh: missing Python modules; carry them as wheels (bench/gpu/wheels.txt): " + "; ".join(missing))
CHECK
"$python" -m bench.gpu.run --total-seconds "$((total_seconds - SECONDS))" "$@"
