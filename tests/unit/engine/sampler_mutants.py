"""Samplers with one error each, as a table: what of the C++ or the Python source each of them replaces.

The C++ ones are compiled together, each in a namespace of its own, behind the signature of `baton_sample_adjusted`."""

import ctypes
import inspect
import subprocess
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baton_kernels import build


@dataclass(frozen=True, slots=True)
class Mutant:
    old: str
    new: str
    least: int = 1  # vocabulary from which on it draws other tokens than the right sampler


_COUNT, _DRAW = "least(call.top_k[row], vocab) : vocab", "token = draw(call, row, scaled, vocab, ids, true);"
_KEEP = "keep(call, row, scaled, most, ids, best, keys);"
_FILTERED = "token = draw(call, row, best, kept, ids, false);"

CPP: dict[str, Mutant] = {
    "top-k keeps one more": Mutant(_COUNT, "least(call.top_k[row] + 1, vocab) : vocab"),
    "top-k keeps one fewer": Mutant(_COUNT, "least(call.top_k[row] > 1 ? call.top_k[row] - 1 : 1, vocab) : vocab"),
    "top-k of 1 is no filter": Mutant("(call.top_k[row] > 0 && call.top_k[row] < vocab)", "(call.top_k[row] > 1)"),
    "top-k is ignored": Mutant(f"call.top_k[row] > 0 ? {_COUNT}", "vocab"),
    "top-p keeps the token at its boundary": Mutant(
        "sum >= static_cast<double>(top_p)", "sum > static_cast<double>(top_p)"
    ),
    "top-p drops a token too many": Mutant(
        "sum >= static_cast<double>(top_p) * mass",
        "sum + static_cast<double>(e[j]) >= static_cast<double>(top_p) * mass",
    ),
    "top-p is ignored": Mutant("by_mass = top_p < 1.0f", "by_mass = false"),
    "top-p alone is no filter": Mutant("|| call.top_p[row] < 1.0f", ""),
    "top-p counts what top-k has dropped": Mutant(
        "limit == vocab ? exp_sum(scaled, vocab, top) : -1.0", "exp_sum(scaled, vocab, top)"
    ),
    "top-p looks at few tokens only": Mutant("if (count == limit) return limit;", "return count;", least=513),
    "min-p drops the token at its boundary": Mutant("e[j] < min_p", "e[j] <= min_p"),
    "min-p is absolute": Mutant("e[j] < min_p", "static_cast<double>(e[j]) < min_p * mass"),
    "min-p is ignored": Mutant("|| e[j] < min_p", ""),
    "min-p alone is no filter": Mutant("|| call.min_p[row] > 0.0f", ""),
    "temperature is ignored": Mutant("heat > 0.0f ? v / set(heat) : v", "v"),
    "temperature multiplies": Mutant("v / set(heat)", "v * set(heat)"),
    "temperature comes behind the filters": Mutant(
        f"const long kept = {_KEEP}",
        "const long kept = keep(call, row, y, row_max(y, vocab), ids, best, keys);"
        " for (long i = 0; i < kept; ++i) best[i] = scaled[ids[i]];",
    ),
    "noise of the next position": Mutant(
        "static_cast<uint32_t>(call.position[row])", "static_cast<uint32_t>(call.position[row] + 1)"
    ),
    "noise without the position": Mutant("static_cast<uint32_t>(call.position[row])", "0"),
    "noise without the choice": Mutant("static_cast<uint32_t>(call.choice[row])", "0"),
    "noise of half the seed": Mutant("noise_key(call.seed[row]", "noise_key(static_cast<uint32_t>(call.seed[row])"),
    "noise of the next token": Mutant("static_cast<uint32_t>(ids[i])) + 1)", "static_cast<uint32_t>(ids[i])) + 2)"),
    "noise by rank instead of id": Mutant("(i + j < n ? ids[i + j] : 0)", "static_cast<int32_t>(i + j)"),
    "noise of the vector's first token": Mutant(
        "static_cast<uint32_t>(ids[i])) + 1)", "static_cast<uint32_t>(ids[0])) + 1)"
    ),
    "no noise": Mutant("+ gumbel(key, own)", ""),
    "noise with the other sign": Mutant("+ gumbel(key, own)", "- gumbel(key, own)"),
    "greedy ties to the highest id": Mutant("__builtin_ctz(hits)", "31 - __builtin_clz(hits)"),
    "ties of top-k to the highest id": Mutant("return a > b;", "return a >> 32 != b >> 32 ? a > b : a < b;"),
    "ties of drawn tokens to the highest id": Mutant("ids[i] < found)", "ids[i] > found)"),
    "a negative zero is less than zero": Mutant("value += 0.0f;", ""),
    "the last token is never greedy": Mutant(
        "first_equal(y, vocab, own < 0 ? top : row_max(y, vocab))", "first_equal(y, vocab - 1, row_max(y, vocab - 1))"
    ),
    "the last token is never drawn": Mutant(_DRAW, "token = draw(call, row, scaled, vocab - 1, ids, true);"),
    "the last token is never kept": Mutant(
        f"const long kept = {_KEEP}", f"scaled[vocab - 1] = -kInfinity; const long kept = {_KEEP}"
    ),
    "the first token is never greedy": Mutant(
        "call.tokens[row] = static_cast<int32_t>(token);", "call.tokens[row] = heat > 0 || token ? token : 1;"
    ),
    "the first token is never drawn": Mutant(_DRAW, f"scaled[0] = -kInfinity; {_DRAW}"),
    "the first token is never kept": Mutant(
        f"const long kept = {_KEEP}", f"scaled[0] = -kInfinity; const long kept = {_KEEP}"
    ),
    "filtered draws take the likeliest": Mutant(_FILTERED, "token = ids[0];"),
    "greedy tokens are never banned": Mutant("heat <= 0.0f && b0 == b1", "heat <= 0.0f"),
    "the first ban is forgotten": Mutant("for (long b = b0; b < b1", "for (long b = b0 + 1; b < b1"),
    "the last ban is forgotten": Mutant("b < b1; ++b", "b + 1 < b1; ++b"),
    "bans of the row before": Mutant(
        "call.banned_starts[row] : 0, b1", "call.banned_starts[row > 0 ? row - 1 : 0] : 0, b1"
    ),
    "adjusted rows are forgotten": Mutant("call.adjusted_rows[row] : -1", "-1 : -1"),
    "all adjusted rows are the first": Mutant("call.adjusted + own * vocab", "call.adjusted"),
    "the maximum of the row that is not adjusted": Mutant("own < 0 ? top : row_max(y, vocab)", "top"),
    "logprobs of adjusted logits": Mutant("x[token] - log_total", "y[token] - log_total"),
    "the total of a row is its maximum": Mutant("call.totals[row] = log_total", "call.totals[row] = top"),
    "the total of the first row": Mutant("call.totals[row] =", "call.totals[0] ="),
    "logprobs behind the temperature": Mutant(
        "x[token] - log_total", "(heat > 0.0f ? x[token] / heat : x[token]) - log_total"
    ),
    "likeliest tokens of adjusted logits": Mutant("best_of(x, vocab, wanted", "best_of(y, vocab, wanted"),
    "a likeliest token too few": Mutant("i < wanted ? ids[i]", "i + 1 < wanted ? ids[i]"),
    "the total without its last numbers": Mutant(
        "for (int j = 0; i < n; i += 16, ++j) a[j] = a[j] +", "for (int j = 0; i + 16 < n; i += 16, ++j) a[j] = a[j] +"
    ),
}

# By the function that is changed: the module that calls it, and its name there.
PYTHON: dict[str, tuple[str, Mutant]] = {
    "biases are subtracted": ("engine.step.logit_rules:Biases.apply", Mutant("+=", "-=")),
    "the repetition penalty the other way": (
        "engine.step.logit_rules:RepetitionPenalty.apply",
        Mutant("logits > 0", "logits < 0"),
    ),
    "the repetition penalty divides only": (
        "engine.step.logit_rules:RepetitionPenalty.apply",
        Mutant("logits * self._penalty", "logits / self._penalty"),
    ),
    "the repetition penalty counts emitted tokens only": (
        "engine.step.logit_rules:RepetitionPenalty.push",
        Mutant("self._text.push(token)", "emitted and self._text.push(token)"),
    ),
    "the frequency penalty counts the prompt": (
        "engine.step.logit_rules:EmittedPenalties.push",
        Mutant("if emitted:", "if True:"),
    ),
    "the frequency penalty counts each token once": (
        "engine.step.logit_rules:EmittedPenalties.apply",
        Mutant("self._emitted.counts", "1"),
    ),
    "the presence penalty counts as often as the frequency": (
        "engine.step.logit_rules:EmittedPenalties.apply",
        Mutant("+ self._presence", "+ self._presence * self._emitted.counts"),
    ),
    "penalties are added": ("engine.step.logit_rules:EmittedPenalties.apply", Mutant("-=", "+=")),
    "biases come behind the penalties": (
        "engine.step.logits:rules_of",
        Mutant("return rules", "return rules[1:] + rules[:1]"),
    ),
    "allowed ids are shifted": (
        "engine.step.logit_rules:Bans.apply",
        Mutant("self._closed[:count]", "np.roll(self._closed, 1)[:count]"),
    ),
    "ids beyond the allowed are open": (
        "engine.step.logit_rules:Bans.apply",
        Mutant("row[count:] = -np.inf", "pass"),
    ),
    "suppressed ids are open": (
        "engine.step.logit_rules:Bans.apply",
        Mutant("row[self._suppressed] = -np.inf", "pass"),
    ),
    "bad words of one token are allowed": (
        "engine.step.logit_rules:RepetitionBans.apply",
        Mutant("[self._always, ", "["),
    ),
    "long bad words are allowed": ("engine.step.logit_rules:RepetitionBans.apply", Mutant("== word[:-1]", "== word")),
    "n-grams may come twice": (
        "engine.step.logit_rules:RepetitionBans.apply",
        Mutant("self._seen.get(before, ())", "()"),
    ),
    "drafts are not taken back": (
        "engine.step.logit_rules:TokenCounts.pop",
        Mutant("self._counts[place] -= 1", "return"),
    ),
    "drafts do not count": ("engine.step.logits:FollowedText.adjust", Mutant("if draft is not None:", "if False:")),
    "stop ids are allowed one token early": (
        "engine.step.sampling:banned_stops",
        Mutant("sampling.position < ", "sampling.position + 1 < "),
    ),
    "stop ids are masked one token long": (
        "engine.step.sampling:banned_stops",
        Mutant("sampling.position < ", "sampling.position <= "),
    ),
    "all drafts have the first position": (
        "engine.step.sampling:sampled_rows",
        Mutant("piece.position + i", "piece.position"),
    ),
    "seeds of half their bits": ("engine.step.sampling:sampling_arrays", Mutant("0xFFFFFFFFFFFFFFFF", "0xFFFFFFFF")),
    "temperatures by which logits are infinite": ("engine.step.sampling:_not_too_cold", Mutant("< COLDEST", "< 0.0")),
    "masks are forgotten": ("engine.step.sampling:add_bans", Mutant("_rows(piece, each)", "_rows(piece, None)")),
    "masks forget the bans": ("engine.step.sampling:add_bans", Mutant("np.concatenate(pair)", "pair[1]")),
    "ranks count ties": ("engine.selftest.sampling:score", Mutant("ids < following", "ids <= following")),
    "ranks of equal tokens are first": (
        "engine.selftest.sampling:score",
        Mutant("| ((logits == own) & (ids < following[:, None]))", ""),
    ),
}


def compiled(folder: Path, sources: dict[str, str] | None = None) -> ctypes.CDLL:
    """The library of all mutants of the table; `mutant_0` is the right sampler."""
    cpu = build.HERE / "cpu"
    texts = {name: (cpu / name).read_text().replace("#pragma once", "") for name in ("sample.h", "select.cpp")}
    whole = '#define BODY base\n#include "lanes_avx2.h"\n#include "calls.h"\n#include "math.h"\n'
    whole += "#include <algorithm>\n#include <cstring>\n#include <vector>\n"
    for number, mutant in enumerate((None, *CPP.values())):
        own, found = dict(texts), 0
        if mutant is not None:
            found = sum(text.count(mutant.old) for text in texts.values())
            own = {name: text.replace(mutant.old, mutant.new) for name, text in texts.items()}
            assert found, f"{mutant.old!r} stands in no source any more"
        space = f"namespace baton::m{number} {{ using namespace baton::base;\n"
        select = own["select.cpp"].split("namespace baton {", 1)[1]
        whole += space + select.rpartition("}  // namespace baton")[0] + "}\n"
        whole += own["sample.h"].replace("namespace baton::BODY {", space)
        whole += _ENTRY.replace("NUMBER", str(number))
    (folder / "mutants.cpp").write_text(whole)
    target = folder / "mutants.so"
    flags = [flag for flag in build.FLAGS if flag != "-O3"]
    command = [build.compiler(), *flags, "-O1", "-w", *build.march("sample.cpp"), "-I", str(cpu), "-shared"]
    subprocess.run([*command, str(folder / "mutants.cpp"), "-o", str(target)], check=True)
    return ctypes.CDLL(str(target))


_ENTRY = """
extern "C" __attribute__((visibility("default"))) const char* mutant_NUMBER(
    const float* logits, long rows, long vocab, const float* temperature, const int32_t* top_k, const float* top_p,
    const float* min_p, const uint64_t* seed, const int32_t* choice, const int32_t* position, const int32_t* banned,
    const int32_t* banned_starts, long, const int32_t* n_top, long n_max, int32_t* tokens, float* logprobs,
    int32_t* top_ids, float* top_logprobs, const float* adjusted, const int32_t* adjusted_rows, long, float* totals) {
    const baton::SampleCall call{
        logits, adjusted, adjusted_rows, temperature, top_p, min_p, top_k, choice, position, seed, banned,
        banned_starts, n_top, rows, vocab, n_max, tokens, logprobs, top_ids, top_logprobs, totals};
    std::vector<float> scratch(5 * baton::round_up(vocab, 16) + 16);
    for (long r = 0; r < rows; ++r) baton::mNUMBER::sample(call, r, scratch.data());
    return nullptr;
}
"""


def changed(place: str, mutant: Mutant) -> tuple[Any, str, Any]:
    """The object, attribute and value that put a Python mutant in its place."""
    module, _, path = place.partition(":")
    owner: Any = __import__(module, fromlist=["x"])
    *classes, name = path.split(".")
    for each in classes:
        owner = getattr(owner, each)
    right = getattr(owner, name)
    text = textwrap.dedent(inspect.getsource(right))
    assert text.count(mutant.old) >= 1, f"{mutant.old!r} does not stand in {place} any more"
    names = dict(right.__globals__)
    exec(text.replace(mutant.old, mutant.new), names)
    return owner, name, names[name]
