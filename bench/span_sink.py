"""`python -m bench.span_sink ADDRESS`: accepts OTLP spans over gRPC and drops them unread.

It stands for a collector in benchmarks; a collector on the same machine would otherwise compete for its cores."""

import asyncio
import sys

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

SERVICE = trace_service_pb2.DESCRIPTOR.services_by_name["TraceService"].full_name


async def serve(address: str) -> None:
    answer = trace_service_pb2.ExportTraceServiceResponse().SerializeToString()

    async def export(_request: bytes, _context: object) -> bytes:
        return answer

    server = grpc.aio.server()
    handler = grpc.method_handlers_generic_handler(SERVICE, {"Export": grpc.unary_unary_rpc_method_handler(export)})
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(address)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
