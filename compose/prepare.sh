#!/bin/sh
# Makes what the services of profile full and tls need before they start: a certificate for every member, from an
# authority whose key is thrown away, and every Envoy's configuration. Certificates are made anew when one has less than
# a week left; everything then restarts with them: docker compose up -d --force-recreate.
set -eu
umask 077

# MORE_WORKERS: names of further workers, of a second model for instance (second.yaml); each ends with TIER-NUMBER.
workers="prefill-1 prefill-2 decode-1 decode-2 ${MORE_WORKERS:-}"
names="edge gateway $workers"

tier() { # tier NAME: prefill or decode
    case $1 in *prefill-*) echo prefill ;; *) echo decode ;; esac
}

peers="--peer edge/edge=edge:8443 --peer gateway/gateway=gateway:50051"
for name in $workers; do
    peers="$peers --peer $(tier "$name")/$name=$name:7000"
done

fresh() {
    for name in $names; do
        openssl x509 -in "/mesh/$name/certificate.pem" -noout -checkend 604800 >/dev/null 2>&1 || return 1
    done
}

if fresh; then
    echo "the certificates are still good"
else
    # shellcheck disable=SC2086
    baton envoy certificates /tmp/tls $peers --days 365
    for name in $names; do
        cp "/tmp/tls/$name/"*.pem "/mesh/$name/"
    done
    rm -r /tmp/tls
fi

# render ROLE NAME OPTIONS: the options are those of the service beside this Envoy, as compose.yaml sets them
render() {
    role=$1 name=$2
    shift 2
    # shellcheck disable=SC2086
    baton envoy render --role "$role" --name "$name" $peers --certificate /mesh/certificate.pem --key /mesh/key.pem \
        --ca /mesh/ca.pem --probe 0.0.0.0:9902 --otlp collector:4317 "$@" >"/tmp/$name.yaml"
    cp "/tmp/$name.yaml" "/mesh/$name/envoy.yaml"
}

pages="--route /ui --route /debug --route /metrics" # what this machine's user may look at
# shellcheck disable=SC2086
render edge edge $pages
# shellcheck disable=SC2086
render gateway gateway $pages --set sidecar=127.0.0.1:15001 --set gateway.http_address=127.0.0.1:8000 \
    --set gateway.grpc_address=127.0.0.1:15051 --set gateway.worker_address=127.0.0.1:15052
for worker in $workers; do
    section=$(tier "$worker")
    render "$section" "$worker" --set sidecar=127.0.0.1:15001 --set "$section.address=127.0.0.1:7001" \
        --set "$section.advertise_host=$worker" --set "$section.advertise_port=7000" --set "$section.gateways=gateway:50051"
done
echo "certificates and configurations of $names are ready"
