"""How busy the mesh is, as this gateway knows it: for WatchLoad, and for balancers in the trailers of every answer.

The trailer `endpoint-load-metrics-bin` carries an OrcaLoadReport, which gRPC's and Envoy's balancers weigh."""

from dataclasses import dataclass

from baton.rpc.v1 import rpc_pb2
from gateway.answers.usage import TokenUsage
from gateway.attaching.service import Gateway
from gateway.sequencing.requests import RequestPhase
from mesh.messages.jobs import Tier

TRAILER = "endpoint-load-metrics-bin"


@dataclass(frozen=True, slots=True)
class MeshLoad:
    waiting: int  # requests of this gateway that no worker has
    running: int  # requests of this gateway that a worker has
    prefill_workers: int
    decode_workers: int
    queued_tokens: int  # prompt tokens that wait at prefill workers, of all gateways
    free_pages: int  # sum over all decode workers
    total_pages: int
    tokens_per_second: float  # sum over all decode workers, each in its last second

    @property
    def pages_in_use(self) -> float:
        return 1 - self.free_pages / self.total_pages if self.total_pages else 0.0


def load_of(gateway: Gateway) -> MeshLoad:
    requests = gateway.sequencer.requests.values()
    waiting = sum(request.phase is RequestPhase.WAITING for request in requests)
    prefills, decodes = gateway.workers.tier(Tier.PREFILL), gateway.workers.tier(Tier.DECODE)
    return MeshLoad(
        waiting=waiting,
        running=len(requests) - waiting,
        prefill_workers=len(prefills),
        decode_workers=len(decodes),
        queued_tokens=sum(worker.load.queued_tokens for worker in prefills),
        free_pages=sum(worker.load.free_pages for worker in decodes),
        total_pages=sum(worker.load.total_pages for worker in decodes),
        tokens_per_second=sum(worker.load.tokens_per_second for worker in decodes),
    )


def load_trailer(load: MeshLoad, usage: TokenUsage) -> tuple[str, bytes]:
    """The names of the metrics are those that other servers of language models send."""
    report = rpc_pb2.OrcaLoadReport(
        request_cost={
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
        },
        utilization={"kv_cache": load.pages_in_use},
        named_metrics={
            "kv_cache_usage_perc": load.pages_in_use,
            "num_requests_waiting": load.waiting,
            "num_requests_running": load.running,
        },
        application_utilization=load.pages_in_use,
    )
    return TRAILER, report.SerializeToString()
