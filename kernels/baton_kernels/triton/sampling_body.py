"""The programs of the sampler: `survey` looks at the vocabulary in pieces, `settle` decides each row's token.

First every piece of the vocabulary reports its maximum, its share of the mass and its best noisy score. The best of all
is the token wherever no filter is set. Under filters it is the token if the filters keep it; otherwise they keep
nothing that ranks behind it either, so the search continues among the tokens that rank before it: a few passes. Masses
are sums of whole multiples of 2^-40, so they are the same in any order."""

import triton
import triton.language as tl

from baton_kernels.triton.noise import gumbel, log, noise_key


@triton.jit
def _scaled(logits, allowed, row, ids, vocab, words, heat, MASKED: tl.constexpr):
    """The scores that the filters compare; -inf outside the vocabulary and for tokens that the mask forbids."""
    inside = ids < vocab
    x = tl.load(logits + row * vocab + ids, mask=inside, other=float("-inf"))
    if heat > 0:
        x = tl.div_rn(x, heat)
    x = tl.where(x == 0.0, 0.0, x)  # turns -0 into +0
    if MASKED:
        word = tl.load(allowed + row * words + ids // 32, mask=inside, other=0)
        x = tl.where(((word >> (ids % 32)) & 1) != 0, x, float("-inf"))
    return x


@triton.jit
def largest(score, ids):
    """The largest score, and the lowest id that has it."""
    most = tl.max(score, 0)
    return most, tl.min(tl.where(score == most, ids, 0x7FFFFFFF), 0)


@triton.jit
def better(best, token, new_best, new_token):
    wins = (new_best > best) | ((new_best == best) & (new_token < token))
    return tl.where(wins, new_best, best), tl.where(wins, new_token, token)


@triton.jit
def _noisy(x, ids, key, heat):
    if heat > 0:
        x = x + gumbel(key, ids)
    return x


@triton.jit(do_not_specialize=["pieces", "words"])
def survey(
    logits,
    temperature,
    seed,
    choice,
    position,
    allowed,
    scratch,
    vocab,
    words,
    pieces,
    PIECE: tl.constexpr,
    MASKED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    piece = tl.program_id(1)
    ids = piece * PIECE + tl.arange(0, PIECE)
    heat = tl.load(temperature + row)
    raw = tl.load(logits + row * vocab + ids, mask=ids < vocab, other=float("-inf"))
    top = tl.max(raw, 0)
    mass = tl.sum(tl.exp(raw - tl.where(top == float("-inf"), 0.0, top)), 0)
    x = _scaled(logits, allowed, row, ids, vocab, words, heat, MASKED)
    key = noise_key(tl.load(seed + row).to(tl.uint64), tl.load(choice + row), tl.load(position + row))
    best, token = largest(_noisy(x, ids, key, heat), ids)
    to = scratch + row * 5 * pieces + piece
    tl.store(to, top)
    tl.store(to + pieces, mass)
    tl.store(to + 2 * pieces, tl.max(x, 0))
    tl.store(to + 3 * pieces, best)
    tl.store(to + 4 * pieces, token.to(tl.float32, bitcast=True))


@triton.jit
def _ordered(x):
    """float32 -> uint32 of the same order."""
    bits = x.to(tl.uint32, bitcast=True)
    return tl.where(bits >= 0x80000000, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def _share(x, top):
    """e^(x - top) in units of 2^-40."""
    return (tl.exp(x - top) * 1099511627776.0).to(tl.int64)


@triton.jit
def _kth(logits, allowed, row, vocab, words, heat, k, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """The k-th largest score as an ordered number, found digit by digit, and how many of its equals are among the k."""
    digits = tl.arange(0, 256)
    found = tl.zeros([1], tl.uint32)
    for place in tl.static_range(4):
        histogram = tl.zeros([256], tl.int32)
        for at in range(0, vocab, BLOCK):
            ids = at + tl.arange(0, BLOCK)
            number = _ordered(_scaled(logits, allowed, row, ids, vocab, words, heat, MASKED))
            digit_of = ((number >> (24 - 8 * place)) & 0xFF).to(tl.int32)
            in_race = ids < vocab
            if place > 0:
                in_race = in_race & ((number >> (32 - 8 * place)) == found)
            histogram += tl.histogram(digit_of, 256, mask=in_race)
        from_here_up = tl.sum(histogram, 0) - tl.cumsum(histogram, 0) + histogram
        digit = tl.sum((from_here_up >= k).to(tl.int32), 0) - 1
        k -= tl.sum(tl.where(digits > digit, histogram, 0), 0)
        found = (found << 8) | digit.to(tl.uint32)
    return tl.max(found, 0), k


@triton.jit(do_not_specialize=["pieces", "words"])
def settle(
    logits,
    temperature,
    top_k,
    top_p,
    min_p,
    seed,
    choice,
    position,
    allowed,
    scratch,
    tokens,
    logprobs,
    log_totals,
    vocab,
    words,
    pieces,
    PIECES: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, PIECES)
    part = scratch + row * 5 * pieces + at
    own = at < pieces
    raw_tops = tl.load(part, mask=own, other=float("-inf"))
    raw_top = tl.max(raw_tops, 0)
    masses = tl.load(part + pieces, mask=own, other=0.0)
    log_total = raw_top + tl.max(log(tl.sum(masses * tl.exp(raw_tops - raw_top), 0) + tl.zeros([1], tl.float32)), 0)
    top = tl.max(tl.load(part + 2 * pieces, mask=own, other=float("-inf")), 0)
    bests = tl.load(part + 3 * pieces, mask=own, other=float("-inf"))
    names = tl.load(part + 4 * pieces, mask=own, other=0.0).to(tl.int32, bitcast=True)
    _, token = largest(bests, tl.where(own, names, 0x7FFFFFFF))

    heat = tl.load(temperature + row)
    k = tl.load(top_k + row)
    p = tl.load(top_p + row)
    least = tl.load(min_p + row)
    limited = (k > 0) & (k < vocab)
    if (heat > 0) & (limited | (p < 1.0) | (least > 0.0)):
        key = noise_key(tl.load(seed + row).to(tl.uint64), tl.load(choice + row), tl.load(position + row))
        if not limited:
            k = vocab
        # The mass that top-k keeps; everything passes while top-p is off.
        whole = tl.full([1], 0x7FFFFFFFFFFFFFFF, tl.int64)
        if p < 1.0:
            kth = tl.zeros([1], tl.uint32)
            equals = tl.zeros([1], tl.int32)
            if limited:
                kth_number, equal_count = _kth(logits, allowed, row, vocab, words, heat, k, MASKED, BLOCK)
                kth += kth_number
                equals += equal_count
            whole = tl.zeros([1], tl.int64)
            per_equal = tl.zeros([1], tl.int64)
            for start in range(0, vocab, BLOCK):
                ids = start + tl.arange(0, BLOCK)
                x = _scaled(logits, allowed, row, ids, vocab, words, heat, MASKED)
                number = _ordered(x)
                share = tl.where(ids < vocab, _share(x, top), 0)
                whole += tl.sum(tl.where(number > kth, share, 0), 0)
                per_equal = tl.maximum(per_equal, tl.max(tl.where(number == kth, share, 0), 0))
            whole += per_equal * equals
        limit = tl.max(whole, 0).to(tl.float64) * p.to(tl.float64)
        searching = True
        while searching:
            score = tl.load(logits + row * vocab + token)
            score = tl.div_rn(score, heat)
            ahead = 0
            mass = tl.zeros([1], tl.int64)
            next_best = float("-inf")
            next_token = 0x7FFFFFFF
            for start in range(0, vocab, BLOCK):
                ids = start + tl.arange(0, BLOCK)
                x = _scaled(logits, allowed, row, ids, vocab, words, heat, MASKED)
                before = (x > score) | ((x == score) & (ids < token))
                before_count = tl.sum(before.to(tl.int32), 0)
                if before_count > 0:
                    ahead += before_count
                    mass += tl.sum(tl.where(before, _share(x, top), 0), 0)
                    block_best, block_token = largest(tl.where(before, _noisy(x, ids, key, heat), float("-inf")), ids)
                    next_best, next_token = better(next_best, next_token, block_best, block_token)
            kept = (ahead < k) & (tl.exp(score - top) >= least)
            if p < 1.0:
                kept = kept & (tl.max(mass, 0).to(tl.float64) < limit)
            searching = (ahead > 0) & (kept == 0)
            if searching:
                token = next_token
    tl.store(tokens + row, token)
    tl.store(logprobs + row, tl.load(logits + row * vocab + token) - log_total)
    tl.store(log_totals + row, log_total)
