#!/bin/sh
# Draws the token that the services of profile lite show each other, once; it stays in the volume `token`.
set -eu
umask 077
if [ -s /mesh/token/token ]; then
    echo "the token is there"
else
    od -An -tx1 -N32 /dev/urandom | tr -d ' \n' >/mesh/token/token.new
    mv /mesh/token/token.new /mesh/token/token
    echo "the token is drawn"
fi
