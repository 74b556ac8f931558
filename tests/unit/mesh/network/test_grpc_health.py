"""A watcher of a service's health gets its newest status, even one that comes while an older one is being sent."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from mesh.network.grpc_health import SERVICE, HealthService

SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING


def watch(health: HealthService, service: str) -> AsyncIterator[HealthCheckResponse]:
    """The stream of answers, each of which counts as being sent until the next one is asked for."""
    call: Any = SimpleNamespace(method=f"/{SERVICE}/Watch", invocation_metadata=())
    handler: Any = health.handler().service(call)
    answers: AsyncIterator[HealthCheckResponse] = handler.unary_stream(
        HealthCheckRequest(service=service).SerializeToString(), None
    )
    return answers


async def test_a_port_that_closes_while_a_status_is_sent_still_says_not_serving() -> None:
    health = HealthService()
    health.set(["a"], True)
    answers = watch(health, "a")
    assert (await anext(answers)).status == SERVING
    health.close()
    assert (await anext(answers)).status == NOT_SERVING
    with pytest.raises(StopAsyncIteration):
        await anext(answers)


async def test_changes_while_a_status_is_sent_are_seen_by_their_last_one() -> None:
    health = HealthService()
    health.set(["a"], True)
    answers = watch(health, "a")
    assert (await anext(answers)).status == SERVING
    health.set(["a"], False)
    health.set(["a"], True)
    health.set(["a"], False)
    assert (await anext(answers)).status == NOT_SERVING
