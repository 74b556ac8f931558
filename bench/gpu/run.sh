#!/usr/bin/env bash
# All tests and benchmarks of the GPU lane in one command, under ten minutes with everything, without a network.
#
#   bench/gpu/run.sh [WHEELS] [options of python -m bench.gpu.run]
#
# Needs Python 3.11 or newer with torch (CUDA), triton, transformers and pytest, g++ and an NVIDIA driver. WHEELS, or the variable
# BATON_GPU_WHEELS, is a folder of wheels for what else is missing (bench/gpu/wheels.txt lists it); they go to a folder
# of their own, nothing is installed. Exits with 0 when all ran and no target was missed, 1 when not, 2 when it cannot run.
set -euo pipefail
total_seconds=560 # with what comes before the sections: a lent machine may give ten minutes
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
PATH="$(dirname "$("$python" -c 'import sys; print(sys.executable)')"):$PATH" # its ninja, which FlashInfer calls
export PATH PYTHONUNBUFFERED=1

wheels=${BATON_GPU_WHEELS:-}
if [[ $# -gt 0 && $1 != --* ]]; then
    wheels=$1
    shift
fi
"$python" kernels/baton_kernels/build.py >&2 & # beside the wheels
building=$!
export PYTHONPATH="$PWD:$PWD/kernels:$PWD/protos${PYTHONPATH:+:$PYTHONPATH}"
if [[ -n $wheels ]]; then
    [[ -d $wheels ]] || { echo "bench/gpu/run.sh: $wheels is no folder of wheels" >&2; exit 2; }
    site=$(mktemp -d "${TMPDIR:-/tmp}/baton-wheels-XXXXXX")
    trap 'rm -rf "$site"' EXIT
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" "$wheels"/*.whl || exit 2
    export PYTHONPATH="$PYTHONPATH:$site"
fi
wait "$building" || exit 2
"$python" - <<'CHECK' || exit 2
import importlib.util, sys
needed = "torch triton transformers numpy safetensors tokenizers pytest pytest_asyncio pytest_timeout grpc grpc_status grpc_health grpc_reflection google.protobuf opentelemetry.sdk opentelemetry.exporter.otlp.proto.grpc msgspec blake3 starlette uvicorn uvloop llguidance jinja2 prometheus_client typer rich"
def there(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
missing = [name for name in needed.split() if not there(name)]
if missing:
    sys.exit("bench/gpu/run.sh: missing Python modules: " + ", ".join(missing) + "; carry them as wheels (bench/gpu/wheels.txt)")
CHECK
"$python" -m bench.gpu.run --total-seconds "$((total_seconds - SECONDS))" "$@"
