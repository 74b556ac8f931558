"""A worker's counts over a real server, on the port that serves its streams."""

import asyncio

from mesh.network.grpc_network import GrpcNetwork
from mesh.network.grpc_stats import read_stats, stats_service
from mesh.network.interface import Channel, Stream


async def test_counts_are_those_of_the_moment_and_streams_are_served_beside_them() -> None:
    counts = {"bytes_landed": 2**40, "steps": 0}
    accepted = asyncio.Event()

    async def accept(stream: Stream) -> None:
        accepted.set()

    network = GrpcNetwork(also=stats_service(lambda: counts))
    listening = await network.listen("127.0.0.1:0", {Channel.ATTACH: accept})
    try:
        assert await read_stats(listening.address) == {"bytes_landed": 2**40, "steps": 0}
        counts["steps"] = 3
        assert (await read_stats(listening.address))["steps"] == 3
        stream = await network.dial(listening.address, Channel.ATTACH)
        await asyncio.wait_for(accepted.wait(), 30)
        stream.close()
    finally:
        await listening.close()
