"""Checks what a decode worker states about its landing, before prefill computes with it.

A problem ends the session with that decode worker. Without these checks a Landing that is too short would fail the step
that pushes into it, and so the requests beside it."""

from collections.abc import Mapping

from engine.pool.bands import ONE_BAND, LayerBands
from engine.pool.horizon import Horizon
from kvtransfer.transfer import Writer
from mesh.messages.kv_messages import Landing, Resend
from mesh.messages.page_shape import PageShape


def landing_problem(landing: Landing, tokens: int, writer: Writer | None, bands: LayerBands = ONE_BAND) -> str:
    """The reason why these cannot be pages of a prompt with `tokens` tokens in this writer's pool; empty: they can."""
    if writer is None:
        return "Landing: comes before there is a way to write it"
    horizon, first = Horizon.of(bands, writer.shape.page_tokens), landing.first_page
    needed, stretches = horizon.whole(tokens), horizon.stretches(tokens)
    most = stretches if horizon.full else first // horizon.bands  # else all pages before it would be of no use
    if first % horizon.bands or not 0 <= landing.first_windowed <= most:
        whole = f"a prompt of {tokens} tokens has {stretches} times {horizon.bands} pages"
        return f"Landing.first_page, first_windowed: are {first} and {landing.first_windowed}, {whole}"
    lands = sum(horizon.landing(first, needed, landing.first_windowed))
    if first > needed or len(landing.pages) != lands:
        return f"Landing.pages: are {len(landing.pages)} from page {first} on, a prompt of {tokens} tokens has {lands}"
    return "" if len(set(landing.pages)) == len(landing.pages) else "Landing.pages: names a page twice"


def targets_of(landing: Landing, tokens: int, shape: PageShape, bands: LayerBands) -> dict[int, int]:
    """Decode's page id for each index of the prompt's pages that lands, where the landing has no problem."""
    horizon = Horizon.of(bands, shape.page_tokens)
    lands = horizon.landing(landing.first_page, horizon.whole(tokens), landing.first_windowed)
    indexes = (index for index, each in enumerate(lands, landing.first_page) if each)
    return dict(zip(indexes, landing.pages, strict=True))


def resend_problem(resend: Resend, targets: Mapping[int, int], shape: PageShape | None) -> str:
    """Why a landing into these pages, of this form, has no such spans; empty: it has."""
    if shape is None:
        return "Resend: comes before there is a landing"
    layers = shape.layers
    first, count, pages = resend.first_layer, resend.layers, resend.pages
    if not 0 <= first < first + count <= layers:
        return f"Resend.first_layer, layers: {first}+{count} are no layers of pages with {layers}"
    if not pages or len(set(pages)) < len(pages):
        return "Resend.pages: names no page, or one twice"
    odd = next((page for page in pages if page not in targets), None)
    return "" if odd is None else f"Resend.pages: page {odd} is not among the {len(targets)} of the landing"
