"""One line for each request of a client, when it ends: what it was, how it ended and how long it took.

The line shows neither prompt nor output, unless the setting `log_content` asks for them."""

import logging

from gateway.tracing.record import RequestRecord

log = logging.getLogger("baton.request")


def log_request(record: RequestRecord) -> None:
    ttft = record.ttft_seconds
    fields: dict[str, object] = {
        **record.log_fields,
        "model": record.model,
        "tenant": record.admission.tenant,
        "status": record.status,
        "error": record.error,
        "field": record.field,
        "path": record.path,
        "prompt_tokens": record.prompt_tokens,
        "completion_tokens": record.completion_tokens,
        "ttft_seconds": None if ttft is None else round(ttft, 6),
        "seconds": round(record.seconds, 6),
    }
    if record.decode is not None:
        fields["prompts"] = [record.decode(choice.prompt, record.model) for choice in record.choices]
        fields["outputs"] = [record.decode(choice.output, record.model) for choice in record.choices]
    log.info(
        "request %s trace %s%s %s%s %s %d+%d tokens, first after %s, %.3f s%s",
        record.request_id,
        fields["trace_id"],
        f" tenant {record.admission.tenant}" if record.admission.tenant else "",
        record.status,
        f" {record.error}{f' {record.field}' if record.field else ''}" if record.error else "",
        record.path or "-",
        record.prompt_tokens,
        record.completion_tokens,
        "-" if ttft is None else f"{ttft:.3f} s",
        record.seconds,
        f" {fields['prompts']} -> {fields['outputs']}" if record.decode is not None else "",
        extra={"event": "request", **fields},
    )
