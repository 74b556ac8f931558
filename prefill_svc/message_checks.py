"""Checks what a decode worker states about its landing, before prefill computes with it.

A problem ends the session with that decode worker. Without these checks a Landing that is too short would fail the step
that pushes into it, and so the requests beside it."""

from engine.step.batch import pages_needed
from kvtransfer.transfer import Writer
from mesh.messages.kv_messages import Landing, Resend
from mesh.messages.page_shape import PageShape


def landing_problem(landing: Landing, tokens: int, writer: Writer | None) -> str:
    """The reason why these cannot be pages of a prompt with `tokens` tokens in this writer's pool; empty: they can."""
    if writer is None:
        return "Landing: comes before there is a way to write it"
    shape = writer.shape
    needed, first = pages_needed(tokens, shape.page_tokens), landing.first_page
    if first + len(landing.pages) != needed:
        return f"Landing.pages: are {len(landing.pages)} from page {first} on, a prompt of {tokens} tokens has {needed}"
    return "" if len(set(landing.pages)) == len(landing.pages) else "Landing.pages: names a page twice"


def resend_problem(resend: Resend, landing: Landing | None, shape: PageShape | None) -> str:
    """Why this landing, in pages of this form, has no such spans; empty: it has."""
    if landing is None or shape is None:
        return "Resend: comes before there is a landing"
    layers = shape.layers
    first, count, pages = resend.first_layer, resend.layers, resend.pages
    if not 0 <= first < first + count <= layers:
        return f"Resend.first_layer, layers: {first}+{count} are no layers of pages with {layers}"
    if not pages or len(set(pages)) < len(pages):
        return "Resend.pages: names no page, or one twice"
    stop = landing.first_page + len(landing.pages)
    odd = next((page for page in pages if not landing.first_page <= page < stop), None)
    return "" if odd is None else f"Resend.pages: page {odd} is not in the landing of {landing.first_page} to {stop}"
