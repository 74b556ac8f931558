#!/usr/bin/env bash
# Makes the base image of compose/offline from Debian's packages alone: needs root, debootstrap and a Docker engine.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
debootstrap --variant=minbase --include=ca-certificates,python3 bookworm "$folder/root" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" >"$folder/log" \
    || { tail -5 "$folder/log" >&2 && exit 1; }
# What no container needs: package lists, manuals, translations.
rm -rf "$folder"/root/var/lib/apt/lists/* "$folder"/root/var/cache/apt/* "$folder"/root/usr/share/{doc,man,locale,info}/*
tar -C "$folder/root" -c . | ${DOCKER:-docker} import - "${BASE_PYTHON:-debian-python:bookworm}"
