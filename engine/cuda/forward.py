"""The pass over a model's layers and the sampler, as launches: inputs and outputs lie in blocks on the device.

Nothing here waits for the device or reads from it, and what is launched depends on the step's form alone: so the same
calls can be captured as a graph. Scratch memory comes from torch's allocator, within a capture from the graph's."""

from collections.abc import Callable, Mapping

import torch

from baton_kernels import triton as kernels
from baton_kernels.triton.attention import partial_floats
from baton_kernels.triton.sampling import scratch_floats
from engine.cuda.form import Form, Place, input_places, output_places
from engine.cuda.products import Products
from engine.cuda.weights import DeviceLayer, DeviceWeights

Written = Callable[[int], None]
Tensors = Mapping[str, torch.Tensor]
_FLOATS = frozenset(("temperature", "top_p", "min_p", "logprobs", "top_logprobs"))


class DeviceForward:
    def __init__(
        self, weights: DeviceWeights, pool: torch.Tensor, shape: kernels.GpuPageShape, products: Products
    ) -> None:
        self._weights, self._pool, self._shape, self._products = weights, pool, shape, products

    def step(self, form: Form, words: torch.Tensor, results: torch.Tensor, written: Written) -> None:
        """`words` holds this step's inputs, `results` the step before's outputs until this one's take their place."""
        inputs = _views(words, input_places(form, self._weights.config.vocab)[0])
        hidden = self._hidden(form, inputs, _followed(inputs, results), written)
        if form.sampled:
            self._sample(form, inputs, self._logits(hidden), results)

    def logits(self, form: Form, words: torch.Tensor, results: torch.Tensor) -> torch.Tensor:
        """The same without sampling: float32 [sampled, vocab]."""
        inputs = _views(words, input_places(form, self._weights.config.vocab)[0])
        return self._logits(self._hidden(form, inputs, _followed(inputs, results), lambda layer: None))

    def _hidden(self, form: Form, inputs: Tensors, tokens: torch.Tensor, written: Written) -> torch.Tensor:
        """Final hidden states, normalised, of the sampled rows: bf16 [sampled, hidden]."""
        weights, config = self._weights, self._weights.config
        make = _Maker(weights.device)
        x = weights.embed.index_select(0, tokens).float()
        normed = make.bf16(form.rows, config.hidden)
        qkv = make.fp32(form.rows, config.qkv_width)
        q = make.bf16(form.rows, config.heads, config.head_dim)
        # Rows without a slot are never attended for; they must be numbers all the same.
        attended = make.bf16(form.rows, config.q_width).zero_()
        gated = make.bf16(form.rows, config.ffn)
        partials = make.fp32(self._partial_floats(form))
        for index, layer in enumerate(weights.layers):
            kernels.rmsnorm(x, layer.input_norm, config.eps, out=normed)
            self._products.product(normed, layer.qkv, qkv, layer.qkv_bias)
            self._rotate_write(index, layer, inputs, qkv, q)
            written(index)
            last = index + 1 == config.layers
            if last and not form.sampled:
                return normed[:0]
            self._attend(form, index, inputs, q, attended, partials)
            if last and form.sampled < form.rows:  # the rest of it for sampled rows only
                x, attended = x.index_select(0, inputs["sampled"]), attended.index_select(0, inputs["sampled"])
                normed, gated = normed[: form.sampled], gated[: form.sampled]
            self._products.product(attended, layer.o, x, layer.o_bias, x)
            kernels.rmsnorm(x, layer.ffn_norm, config.eps, out=normed)
            self._products.gated(normed, layer.gate_up, gated)
            self._products.product(gated, layer.down, x, None, x)
        kernels.rmsnorm(x, weights.norm, config.eps, out=normed)
        return normed

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        out = _Maker(hidden.device).fp32(len(hidden), self._weights.config.vocab)
        self._products.product(hidden, self._weights.head, out)
        return out

    def _sample(self, form: Form, inputs: Tensors, logits: torch.Tensor, results: torch.Tensor) -> None:
        make, outputs = _Maker(logits.device), _views(results, output_places(form)[0])
        totals = make.fp32(form.sampled)
        kernels.sample(
            logits,
            *(inputs[name] for name in ("temperature", "top_k", "top_p", "min_p", "seed", "choice", "position")),
            scratch=make.fp32(scratch_floats(form.sampled, self._weights.config.vocab)),
            tokens=outputs["tokens"],
            logprobs=outputs["logprobs"],
            log_totals=totals,
            allowed=inputs.get("allowed"),
        )
        if form.tops:
            ids, logprobs = outputs["top_ids"], outputs["top_logprobs"]
            kernels.top_logprobs(logits, totals, inputs["n_top"], ids=ids, logprobs=logprobs)

    def _rotate_write(
        self, index: int, layer: DeviceLayer, inputs: Tensors, qkv: torch.Tensor, q: torch.Tensor
    ) -> None:
        weights = self._weights
        kernels.rotate_write(
            qkv,
            weights.cos,
            weights.sin,
            inputs["slots"],
            inputs["sequence_of"],
            inputs["tables"],
            self._pool,
            self._shape,
            index,
            q_out=q,
            q_norm=layer.q_norm,
            k_norm=layer.k_norm,
            eps=weights.config.eps,
        )

    def _attend(
        self,
        form: Form,
        index: int,
        inputs: Tensors,
        q: torch.Tensor,
        attended: torch.Tensor,
        partials: torch.Tensor,
    ) -> None:
        names, scale = ("tables", "starts", "counts", "first_row"), self._weights.config.head_dim**-0.5
        if form.few:
            few = (inputs[name][: form.few_sequences] for name in names)
            kernels.attend(
                q[: form.few], self._pool, self._shape, index, *few,
                scale=scale, out=attended[: form.few], most_rows=form.most, partials=partials,
            )  # fmt: skip
        if form.longest:
            others = (inputs[name][form.few_sequences :] for name in names)
            kernels.attend(
                q, self._pool, self._shape, index, *others,
                scale=scale, out=attended, most_rows=form.longest,
            )  # fmt: skip

    def _partial_floats(self, form: Form) -> int:
        config, page_tokens = self._weights.config, self._shape.page_tokens
        return partial_floats(form.few, config.heads, config.head_dim, form.width, page_tokens) if form.few else 0


class _Maker:
    """Scratch memory; every element is written before it is read."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def bf16(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, device=self._device)

    def fp32(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float32, device=self._device)


def _views(words: torch.Tensor, places: Mapping[str, Place]) -> dict[str, torch.Tensor]:
    return {name: _view(words, place, name) for name, place in places.items()}


def _view(words: torch.Tensor, place: Place, name: str) -> torch.Tensor:
    length = place.words
    for side in place.shape:
        length *= side
    part = words[place.first : place.first + length]
    if place.words == 2:
        part = part.view(torch.int64)
    elif name in _FLOATS:
        part = part.view(torch.float32)
    return part.view(place.shape)


def _followed(inputs: Tensors, results: torch.Tensor) -> torch.Tensor:
    """Each row's token: named by the host, or sampled by the step before."""
    follows = inputs["follows"]
    before = results.index_select(0, follows.clamp(min=0))
    return torch.where(follows >= 0, before, inputs["tokens"])
