"""The base of every service: messages, sessions, the network, configuration, errors, telemetry."""

import os

# gRPC would stop and restart its threads around each fork, also around that of a subprocess: under load the child then
# dies before it begins, or the parent hangs. No process of ours forks to go on with gRPC in the child.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
