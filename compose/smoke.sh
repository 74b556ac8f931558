#!/usr/bin/env bash
# From a clean checkout to a traced answer, on a real Docker engine, and tidy afterwards.
#
#   compose/smoke.sh                 profile full, with the images that compose/.env names (without Grafana)
#   compose/smoke.sh --offline       with the stand-ins of compose/offline, where no registry can be reached
#   compose/smoke.sh --profile lite  gateway and workers only; also --profile tls
#   compose/smoke.sh --keys          callers show a key, and are refused without one
#   compose/smoke.sh --second        a second model beside the first (compose/second.yaml; not with --profile tls)
#
# It builds the images, starts everything, waits until all containers are healthy, asks one question through the OpenAI
# API with a trace id of its own, finds that trace in the store of traces, and removes containers, networks and volumes.
# Progress goes to stderr, with --json one object to stdout. --keep leaves the mesh running. Where no engine answers and
# this is root with dockerd, it starts an engine of its own and removes that too: bridge, rules and files.
# Variables: DOCKER (the command), BASE_PYTHON, IMAGE_... (compose/.env), CA_FILE (an authority for pip behind a proxy).
set -euo pipefail

source_folder=$(cd "$(dirname "$0")/.." && pwd)
docker=${DOCKER:-docker} offline=false profile=full keep=false json=false keys=false second=false
while (($#)); do
    case $1 in
        --offline) offline=true ;;
        --profile) profile=$2 && shift ;;
        --keep) keep=true ;;
        --keys) keys=true ;;
        --second) second=true ;;
        --json) json=true ;;
        *) sed -n '2,15p' "$0" >&2 && exit 2 ;;
    esac
    shift
done
if $second && [ "$profile" = tls ]; then
    echo "--second: compose/second.yaml has no workers in profile tls; take --profile full or lite" >&2 && exit 2
fi

begun=$(date +%s%N)
work=$(mktemp -d /tmp/baton-smoke.XXXXXX)
project=$(basename "$work" | tr '[:upper:].' '[:lower:]-')
steps=() engine_pid=
seconds() { awk "BEGIN { printf \"%.1f\", ($(date +%s%N) - $1) / 1e9 }"; }
say() { echo "[$(seconds "$begun") s] $*" >&2; }
fail() { say "FAILED: $*" && exit 1; }
step() { # step NAME COMMAND...: runs the command, remembers how long it took
    local name=$1 at
    at=$(date +%s%N)
    shift
    say "$name …"
    "$@" || fail "$name"
    steps+=("\"$name\": $(seconds "$at")")
}

# ---- the engine

start_engine() {
    $docker version >/dev/null 2>&1 && return
    command -v dockerd >/dev/null && [ "$(id -u)" = 0 ] || fail "no Docker engine answers: start one"
    iptables-save >"$work/iptables"
    export DOCKER_HOST=unix://$work/docker.sock
    dockerd --data-root "$work/data" --exec-root "$work/exec" --pidfile "$work/dockerd.pid" -H "$DOCKER_HOST" >"$work/dockerd.log" 2>&1 &
    engine_pid=$!
    for _ in $(seq 60); do
        $docker version >/dev/null 2>&1 && return
        sleep 0.5
    done
    tail -5 "$work/dockerd.log" >&2 && return 1
}

stop_engine() {
    [ -n "$engine_pid" ] || return 0
    kill "$engine_pid" && wait "$engine_pid" || true
    ip link delete docker0 2>/dev/null || true
    iptables -P FORWARD ACCEPT # a machine without any rule has none to restore
    for table in filter nat; do iptables -t $table -F && iptables -t $table -X; done
    iptables-restore <"$work/iptables"
}

# ---- compose

compose() {
    local files=(-f compose.yaml) environment=.env
    if $offline; then files+=(-f offline/compose.yaml) environment=offline/.env; fi
    if $second; then files+=(-f second.yaml); fi
    (cd "$work/checkout/compose" && COMPOSE_PROFILES=$profile $docker compose -p "$project" --env-file "$environment" "${files[@]}" "$@")
}

tidy() {
    local status=$?
    trap - EXIT
    if [ $status != 0 ] && [ -d "$work/checkout" ]; then
        compose ps -a >&2 || true
        compose logs --tail 15 >&2 || true
    fi
    if $keep; then
        say "left running: project $project, files in $work"
        exit $status
    fi
    [ ! -d "$work/checkout" ] || compose down --volumes --timeout 10 >"$work/down.log" 2>&1 || cat "$work/down.log" >&2
    stop_engine
    rm -rf "$work"
    exit $status
}
trap tidy EXIT

checkout() { # what is committed, and nothing else
    mkdir "$work/checkout" && git -C "$source_folder" -c tar.umask=0022 archive HEAD | tar -x -C "$work/checkout"
}

base() {
    if ! $offline || $docker image inspect "${BASE_PYTHON:-debian-python:bookworm}" >/dev/null 2>&1; then return; fi
    DOCKER=$docker bash "$work/checkout/compose/offline/base.sh"
}

# ---- what a user does

port() { compose port "$1" "$2"; }
trace=$(od -An -tx1 -N16 /dev/urandom | tr -d ' \n')

ask() {
    # longer than a page, so that a prefill worker computes it and hands it over
    local question="What is Baton? Tell me how a prompt is read, how its pages of keys and values reach the decode worker, and what happens when a worker dies in the middle of it."
    local body='{"model": "'$1'", "messages": [{"role": "user", "content": "'$question'"}], "max_tokens": 48}'
    curl -sS --fail-with-body --max-time 60 "${curl_options[@]}" "$url/v1/chat/completions" -H 'content-type: application/json' \
        -H "traceparent: 00-$trace-00f067aa0ba902b7-01" -d "$body" >"$work/answer.json"
    grep -q '"content": *"[^"]' "$work/answer.json" || { cat "$work/answer.json" >&2 && return 1; }
    grep -o '"content": *"[^"]*"' "$work/answer.json" >&2
}

complete() { # all workers are attached
    local workers=2
    if $second; then workers=3; fi
    for _ in $(seq 60); do
        health=$(curl -sS "${curl_options[@]}" "$url/health" || true)
        case $health in *"\"prefill\":$workers,\"decode\":$workers"*) return ;; esac
        sleep 1
    done
    say "$health" && return 1
}

find_trace() { # Jaeger's API, else Phoenix's
    local store
    store=http://$(port traces 16686)
    for _ in $(seq 60); do
        for path in "api/traces/$trace" "v1/projects/default/spans?limit=1000"; do
            spans=$(curl -s "$store/$path" | grep -oi "$trace" | wc -l || true)
            [ "$spans" -lt 1 ] || { say "the store of traces knows trace $trace ($spans mentions)" && return; }
        done
        sleep 1
    done
    return 1
}

scraped() { # Prometheus reads the gateway's /metrics
    for _ in $(seq 60); do
        case $(curl -s "http://$(port prometheus 9090)/api/v1/query" --data-urlencode 'query=up{job="baton"}' || true) in
            *',"1"]'*) return ;;
        esac
        sleep 1
    done
    return 1
}

draw_key() { # as docs/compose.md says; the services read the file as user 10001
    mkdir "$work/keys"
    key=$($docker run --rm --user 0 --volume "$work/keys:/keys" "${IMAGE_BATON:-baton:local}" \
        keys add smoke --operator --file /keys/keys.txt 2>/dev/null)
    chmod 755 "$work/keys" && chmod 644 "$work/keys/keys.txt"
    export KEYS_FOLDER=$work/keys BATON_GATEWAY_KEYS_FILE=/keys/keys.txt
    export BATON_GATEWAY_KEYS_OPEN_PATHS=/health,/v1/health,/version,/v1/receipts/key,/metrics
    [ -n "$key" ]
}

refused() { # without the key, and with another one
    local wrong
    for wrong in "x-nothing: none" "authorization: Bearer baton-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"; do
        [ "$(curl -s -o /dev/null -w '%{http_code}' "${tls_options[@]}" -H "$wrong" "$url/v1/models")" = 401 ] || return 1
    done
}

two_models() { # folders of two models: here the built-in one, twice
    local folder
    mkdir -m 755 "$work/models"
    for folder in one two; do cp -r "$work/checkout/engine/builtin/pair/model" "$work/models/$folder"; done
    chmod -R a+rX "$work/models"
    export MODEL_FOLDER=$work/models FIRST_MODEL=one SECOND_MODEL=two
}

hardened() { # what the engine says about the containers that run, not what the file asked for
    local id faults=0 limits
    for id in $(compose ps -q); do
        limits=$($docker inspect -f '{{.Name}} {{.HostConfig.ReadonlyRootfs}} {{.Config.User}} {{.HostConfig.CapDrop}} {{.HostConfig.Privileged}}' "$id")
        case $limits in *' true 10001:10001 [ALL] false') ;; *) say "not hardened: $limits" && faults=1 ;; esac
    done
    return $faults
}

left_behind() {
    for kind in container network volume; do
        $docker "$kind" ls -q --filter "label=com.docker.compose.project=$project" $([ $kind != container ] || echo -a)
    done
}

step engine start_engine
step checkout checkout
step base base
if $second; then step models two_models; fi
step build compose build --quiet
if $keys; then step key draw_key; fi
step start compose up -d --wait --wait-timeout 900 --quiet-pull
gateway=$([ "$profile" = full ] && echo gateway || echo "$profile-gateway")
image=$($docker image inspect -f '{{.Size}}' "$($docker inspect -f '{{.Image}}' "$(compose ps -q "$gateway")")")
tls_options=()
if [ "$profile" = full ]; then
    url=https://$(port edge 8443) tls_options=(--cacert "$work/ca.pem")
    compose exec -T edge cat /mesh/ca.pem >"$work/ca.pem"
else
    url=http://$(port "$gateway" 8000)
fi
curl_options=("${tls_options[@]}")
if $keys; then curl_options+=(-H "authorization: Bearer $key") && step refused refused; fi
step complete complete
models=$(curl -sS "${curl_options[@]}" "$url/v1/models" | grep -o '"id": *"[^"]*"' | cut -d'"' -f4)
for model in $models; do step "answer of $model" ask "$model"; done
if $second; then [ "$(sort <<<"$models" | tr '\n' ' ')" = "one two " ] || fail "the models are $models"; fi
if [ "$profile" = full ]; then step trace find_trace && step scraped scraped; fi
step hardened hardened
containers=$(compose ps -q | wc -l)
if ! $keep; then
    step stop compose down --volumes --timeout 10
    [ -z "$(left_behind)" ] || fail "left behind: $(left_behind)"
fi
[ "$image" -le 400000000 ] || fail "the image has $image bytes, more than 400 MB"
say "all is well: $containers containers, the image has $((image / 1000000)) MB"
if $json; then
    steps_json=$(IFS=, && echo "${steps[*]}")
    echo "{\"ok\": true, \"profile\": \"$profile\", \"offline\": $offline, \"keys\": $keys, \"second\": $second, \"containers\": $containers, \"image_bytes\": $image, \"trace\": \"$trace\", \"seconds\": {$steps_json}, \"total_seconds\": $(seconds "$begun")}"
fi
