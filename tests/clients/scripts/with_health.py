"""grpc.health.v1: Check, Watch and List for the whole server and for each service, an unknown service."""

import os

import grpc
from grpc_health.v1 import health_pb2 as pb
from grpc_health.v1 import health_pb2_grpc as rpc

SERVICES = ("", "baton.inference.v1.InferenceService")


def main() -> None:
    with grpc.insecure_channel(os.environ["MESH_GRPC"]) as channel:
        stub = rpc.HealthStub(channel)
        for service in SERVICES:
            request = pb.HealthCheckRequest(service=service)
            assert stub.Check(request, timeout=10).status == pb.HealthCheckResponse.SERVING, service
            watch = stub.Watch(request, timeout=10)
            assert next(watch).status == pb.HealthCheckResponse.SERVING, service
            watch.cancel()
        statuses = stub.List(pb.HealthListRequest(), timeout=10).statuses
        assert all(statuses[service].status == pb.HealthCheckResponse.SERVING for service in SERVICES), statuses
        try:
            stub.Check(pb.HealthCheckRequest(service="nobody"), timeout=10)
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.NOT_FOUND, error
        else:
            raise AssertionError("an unknown service is an error")


if __name__ == "__main__":
    main()
