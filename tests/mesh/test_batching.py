"""Continuous batching and the prefix cache with the real engine, counted in steps, rows and bytes."""

import pytest

from decode_svc.request.requests import DecodePhase
from gateway.routing.router import Local

pytestmark = pytest.mark.mesh

PAGE = 16


def prompt(seed, tokens):
    return tuple((seed * 7919 + slot * 31 + slot // 7) % 250 for slot in range(tokens))


def keys(plan):
    return {piece.key for piece in plan.pieces}


async def test_a_request_that_joins_31_others_gets_its_second_token_within_two_steps_of_landing(real_mesh):
    async with real_mesh() as mesh:
        await mesh.add("prefill")
        decode = await mesh.add("decode", pool_pages=1024)
        others = [mesh.ask(prompt(number, 8), max_tokens=300) for number in range(31)]  # all run when the last begins
        await mesh.until(lambda: all(len(asked.tokens) > 2 for asked in others))
        known = set(decode.requests)
        assert len(known) == 31
        newcomer = mesh.ask(prompt(99, 40))
        landed = None

        def running():
            nonlocal landed
            for request in decode.requests.values():
                if request.key not in known and request.phase is DecodePhase.RUNNING and landed is None:
                    landed = request.key, len(decode.plans)
            return len(newcomer.tokens) >= 2

        await mesh.until(running)
        key, began = landed
        steps = next(n for n, plan in enumerate(decode.plans[began:], 1) if key in keys(plan))
        assert steps <= 2 and known <= keys(decode.plans[began + steps - 1])
        for asked in [*others, newcomer]:
            await asked.task


async def test_a_4k_prompt_prefilled_at_decode_stretches_no_gap_by_more_than_a_chunk(real_mesh):
    async with real_mesh(local=Local.ALWAYS) as mesh:
        decode = await mesh.add("decode", chunk_tokens=256, itl_target_ms=0.0, pool_pages=1024)
        streams = [mesh.ask(prompt(number, 8), max_tokens=60) for number in range(8)]
        await mesh.until(lambda: all(len(asked.tokens) > 1 for asked in streams))
        eight, began = set(decode.requests), len(decode.plans)
        long = mesh.ask(prompt(50, 4000), max_tokens=1)
        await long.task
        during = [n for n, plan in enumerate(decode.plans) if n >= began and keys(plan) - eight]
        assert len(during) == -(-4000 // 256)
        for plan in decode.plans[began : during[-1] + 1]:
            assert keys(plan) >= eight
            assert sum(len(piece.tokens) for piece in plan.pieces if piece.key not in eight) <= 256
        for asked in streams:
            await asked.task


async def test_a_second_request_with_the_same_1024_tokens_computes_and_ships_only_what_is_new(real_mesh):
    async with real_mesh() as mesh:
        prefill, decode = await mesh.add("prefill"), await mesh.add("decode")
        text, page_bytes = prompt(1, 1024), decode.pool.shape.page_bytes
        await mesh.ask((*text, 1, 2, 3)).task
        await mesh.until(lambda: not decode.requests and not prefill.prompts)
        assert sum(plan.rows for plan in prefill.plans) == 1027
        steps, landed, written = len(prefill.plans), decode.landings.bytes_landed, prefill.links.bytes_written
        assert landed == written == 65 * page_bytes
        second = mesh.ask((*text, 9, 8, 7, 6, 5))
        await second.task
        assert sum(plan.rows for plan in prefill.plans[steps:]) <= PAGE + 5
        assert decode.landings.bytes_landed - landed == page_bytes == prefill.links.bytes_written - written


async def test_a_fully_cached_prompt_computes_its_last_row_in_a_copy_and_the_shared_pages_keep_their_bytes(real_mesh):
    async with real_mesh() as mesh:
        prefill, decode = await mesh.add("prefill"), await mesh.add("decode")
        text, tokens, contents = prompt(2, 16 * PAGE), [], []
        for _ in range(2):
            asked = mesh.ask(text)
            await asked.task
            tokens.append(asked.text)
            await mesh.until(lambda: not decode.requests and not prefill.prompts)
            pages = prefill.pages.match(prefill.pages.hashes())
            contents.append([bytes(prefill.pool.view(page, 0, prefill.pool.shape.layers)) for page in pages])
            prefill.pages.release(pages)
        (piece,), ((source, target),) = prefill.plans[-1].pieces, prefill.plans[-1].copies
        assert (piece.start, len(piece.tokens)) == (16 * PAGE - 1, 1) and target not in pages and source in pages
        assert tokens[0] == tokens[1] and contents[0] == contents[1] and len(contents[0]) == 16
