#!/bin/sh
# Builds library and C++ tests together under AddressSanitizer and under UBSan, and runs them on every body of this
# machine; the first finding of either ends with a failure. `sanitize.sh plain` runs without sanitizers.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cpu=$here/../../../kernels/baton_kernels/cpu
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
cxx=${CXX:-g++}
common="-std=c++17 -g1 -fno-var-tracking -ffp-contract=off -fno-math-errno -pthread -w -Wno-psabi"

march() {
    case $1 in
        dispatch | machine_x86_64 | pool) echo "-march=x86-64" ;;
        body_avx512bf16) echo "-march=x86-64-v4 -mavx512bf16" ;;
        body_avx512vnni) echo "-march=x86-64-v4 -mavx512vnni" ;;
        body_amx) echo "-march=x86-64-v4 -mamx-tile -mamx-bf16 -mamx-int8" ;;
        body_avx512) echo "-march=x86-64-v4" ;;
        *) echo "-march=x86-64-v3" ;;
    esac
}

suite() {
    kind=$1
    shift
    mkdir -p "$out/$kind"
    for source in $(ls "$cpu"/*.cpp | grep -v -e aarch64 -e neon) "$here"/test_*.cpp; do
        name=$(basename "$source" .cpp)
        echo "$source $out/$kind/$name.o $(march "$name")"
    done | xargs -P "$(nproc)" -L 1 sh -c 'source=$1; object=$2; shift 2; exec '"$cxx $common $*"' "$@" -c "$source" -o "$object"' compile
    for test in "$here"/test_*.cpp; do
        name=$(basename "$test" .cpp)
        "$cxx" "$@" -pthread "$out/$kind/$name.o" $(ls "$out/$kind"/*.o | grep -v /test_) -o "$out/$kind/$name"
        echo "$kind $name:"
        "$out/$kind/$name"
    done
}

if [ "${1:-}" = plain ]; then
    suite plain -O2
else
    suite address -O1 -fno-omit-frame-pointer -fsanitize=address -fno-sanitize-recover=all
    suite undefined -O1 -fsanitize=undefined -fno-sanitize-recover=all
fi
