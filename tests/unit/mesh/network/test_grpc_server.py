"""A served port: one stream cannot harm another, health and reflection answer, a wrong address is named."""

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from mesh.messages.orders import Cancel
from mesh.messages.reports import Load
from mesh.network.grpc_network import AddressError, GrpcNetwork
from mesh.network.interface import Channel, Stream, StreamClosed
from tests.unit.mesh.grpc_ports import echo, listening


async def test_a_service_that_fails_ends_its_own_stream_only(caplog: pytest.LogCaptureFixture) -> None:
    async def worker(stream: Stream) -> None:
        if await stream.receive() == Cancel(1, 0):
            raise RuntimeError("a defect")
        await echo(stream)

    async with listening({Channel.ATTACH: worker}) as server:
        network = GrpcNetwork()
        good, bad = [await network.dial(server.address, Channel.ATTACH) for _ in range(2)]
        good.send(Cancel(1, 1))
        bad.send(Cancel(1, 0))
        with pytest.raises(StreamClosed):
            await bad.receive()
        good.send(Cancel(1, 9))
        assert await good.receive() == Load(waiting=9)
        assert "a defect" in caplog.text
        good.close()


async def test_a_port_in_use_is_an_error_that_names_the_address_and_the_setting() -> None:
    async with listening({}) as server:
        with pytest.raises(AddressError, match=rf"prefill\.listen = '{server.address}'.*in use"):
            await GrpcNetwork(setting="prefill.listen").listen(server.address, {})


@pytest.mark.parametrize("address", ["", "50051", "host", "host:", "host:port", "127.0.0.1:99999", ":7"])
async def test_an_address_that_is_none_is_an_error_that_shows_how_to_write_one(address: str) -> None:
    with pytest.raises(AddressError, match="host:port"):
        await GrpcNetwork().listen(address, {})


async def test_the_advertised_host_replaces_the_wildcard() -> None:
    server = await GrpcNetwork(advertise_host="worker-7").listen("0.0.0.0:0", {})
    host, _, port = server.address.partition(":")
    await server.close()
    assert host == "worker-7"
    assert int(port) > 0


async def test_the_advertised_port_replaces_that_of_the_address() -> None:
    server = await GrpcNetwork(advertise_host="worker-7", advertise_port=7001).listen("127.0.0.1:0", {})
    await server.close()
    assert server.address == "worker-7:7001"


async def test_health_is_told_per_service_and_changes() -> None:
    async with listening({Channel.ATTACH: echo}) as server:
        async with grpc.aio.insecure_channel(server.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest(service="baton.worker.v1.WorkerService")
            assert (await stub.Check(request)).status == health_pb2.HealthCheckResponse.SERVING
            await server.set_serving(False)
            assert (await stub.Check(request)).status == health_pb2.HealthCheckResponse.NOT_SERVING
            missing = health_pb2.HealthCheckRequest(service="baton.kv.v1.KvService")
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await stub.Check(missing)
            assert failure.value.code() is grpc.StatusCode.NOT_FOUND


async def test_the_registry_is_healthy_while_the_gateway_as_a_whole_is_not() -> None:
    async with listening({}, lambda register: None) as server:
        await server.set_serving(False)
        async with grpc.aio.insecure_channel(server.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            answers = [
                (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status
                for name in ("", "baton.worker.v1.RegistryService")
            ]
    assert answers == [health_pb2.HealthCheckResponse.NOT_SERVING, health_pb2.HealthCheckResponse.SERVING]


async def test_reflection_lists_what_is_served() -> None:
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    async with listening({Channel.ATTACH: echo, Channel.KV: echo}) as server:
        async with grpc.aio.insecure_channel(server.address) as channel:
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
            answer = await call.read()
    names = {service.name for service in answer.list_services_response.service}
    assert {"baton.worker.v1.WorkerService", "baton.kv.v1.KvService", "grpc.health.v1.Health"} <= names
