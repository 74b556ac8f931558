"""A worker that seems to have many requests, so that gateways send the next one elsewhere."""

from gateway.workers.attached import AttachedWorker


def seem_busy(worker: AttachedWorker, requests: int) -> None:
    """Until its next report the gateway takes the worker to have so many requests under way."""
    worker.unreported_requests = requests
    worker.observer.changed(worker)
