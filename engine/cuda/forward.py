"""The pass over a model's layers and the sampler, as launches: inputs and outputs lie in blocks on the device.

Nothing here waits for the device or reads from it, and what is launched depends on the step's shape alone: so the same
calls can be captured as a graph. Scratch memory comes from torch's allocator, during a capture from the graph's
pool."""

from collections.abc import Mapping

import torch

from baton_kernels import triton as kernels
from baton_kernels.triton.attention import partial_floats
from baton_kernels.triton.sampling import scratch_floats
from engine.cuda.products import Products
from engine.cuda.step_shape import Place, StepShape, input_places, output_places
from engine.cuda.weights import DeviceLayer, DeviceWeights
from engine.step.layer_groups import LayerWritten, unreported

Tensors = Mapping[str, torch.Tensor]


class DeviceForward:
    def __init__(
        self, weights: DeviceWeights, pool: torch.Tensor, page_shape: kernels.GpuPageShape, products: Products
    ) -> None:
        self._weights, self._pool, self._page_shape, self._products = weights, pool, page_shape, products

    def step(self, shape: StepShape, words: torch.Tensor, results: torch.Tensor, written: LayerWritten) -> None:
        """`words` holds this step's inputs. `results` holds the outputs of the step before, until this step's replace
        them."""
        inputs = _views(words, input_places(shape, self._weights.config.vocab)[0])
        hidden = self._hidden(shape, inputs, _tokens(inputs, results), written)
        if shape.sampled:
            self._sample(shape, inputs, self._logits(hidden), results)

    def logits(self, shape: StepShape, words: torch.Tensor, results: torch.Tensor) -> torch.Tensor:
        """Computes the same step without sampling: float32 [sampled, vocab]."""
        inputs = _views(words, input_places(shape, self._weights.config.vocab)[0])
        return self._logits(self._hidden(shape, inputs, _tokens(inputs, results), unreported))

    def _hidden(self, shape: StepShape, inputs: Tensors, tokens: torch.Tensor, written: LayerWritten) -> torch.Tensor:
        """Final hidden states, normalised, of the sampled rows: bf16 [sampled, hidden]."""
        weights, config = self._weights, self._weights.config
        make = _Maker(weights.device)
        x = weights.embed.index_select(0, tokens).float()
        normed = make.bf16(shape.rows, config.hidden)
        qkv = make.fp32(shape.rows, config.qkv_width)
        q = make.bf16(shape.rows, config.heads, config.head_dim)
        # Attention skips rows without a slot, but the products read them: they must hold numbers.
        attended = make.bf16(shape.rows, config.q_width).zero_()
        gated = make.bf16(shape.rows, config.ffn)
        partials = make.fp32(self._partial_floats(shape))
        for index, layer in enumerate(weights.layers):
            kernels.rmsnorm(x, layer.input_norm, config.eps, out=normed)
            self._products.product(normed, layer.qkv, qkv, layer.qkv_bias)
            self._rotate_write(index, layer, inputs, qkv, q)
            written(index)
            last = index + 1 == config.layers
            if last and not shape.sampled:
                return normed[:0]
            self._attend(shape, index, inputs, q, attended, partials)
            if last and shape.sampled < shape.rows:  # the rest of this layer for sampled rows only
                x, attended = x.index_select(0, inputs["sampled"]), attended.index_select(0, inputs["sampled"])
                normed, gated = normed[: shape.sampled], gated[: shape.sampled]
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

    def _sample(self, shape: StepShape, inputs: Tensors, logits: torch.Tensor, results: torch.Tensor) -> None:
        make, outputs = _Maker(logits.device), _views(results, output_places(shape)[0])
        totals = make.fp32(shape.sampled)
        kernels.sample(
            logits,
            *(inputs[name] for name in ("temperature", "top_k", "top_p", "min_p", "seed", "choice", "position")),
            scratch=make.fp32(scratch_floats(shape.sampled, self._weights.config.vocab)),
            tokens=outputs["tokens"],
            logprobs=outputs["logprobs"],
            log_totals=totals,
            allowed=inputs.get("allowed"),
        )
        if shape.tops:
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
            self._page_shape,
            index,
            q_out=q,
            q_norm=layer.q_norm,
            k_norm=layer.k_norm,
            eps=weights.config.eps,
        )

    def _attend(
        self,
        shape: StepShape,
        index: int,
        inputs: Tensors,
        q: torch.Tensor,
        attended: torch.Tensor,
        partials: torch.Tensor,
    ) -> None:
        names, scale = ("tables", "starts", "counts", "first_row"), self._weights.config.head_dim**-0.5
        if shape.few:
            few = (inputs[name][: shape.few_sequences] for name in names)
            kernels.attend(
                q[: shape.few], self._pool, self._page_shape, index, *few,
                scale=scale, out=attended[: shape.few], most_rows=shape.most, partials=partials,
            )  # fmt: skip
        if shape.longest:
            others = (inputs[name][shape.few_sequences :] for name in names)
            kernels.attend(
                q, self._pool, self._page_shape, index, *others,
                scale=scale, out=attended, most_rows=shape.longest,
            )  # fmt: skip

    def _partial_floats(self, shape: StepShape) -> int:
        config, page_tokens = self._weights.config, self._page_shape.page_tokens
        return partial_floats(shape.few, config.heads, config.head_dim, shape.width, page_tokens) if shape.few else 0


class _Maker:
    """Scratch memory; every element is written before it is read."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def bf16(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, device=self._device)

    def fp32(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float32, device=self._device)


def _views(words: torch.Tensor, places: Mapping[str, Place]) -> dict[str, torch.Tensor]:
    return {
        name: words[place.first : place.stop].view(getattr(torch, place.dtype)).view(place.shape)
        for name, place in places.items()
    }


def _tokens(inputs: Tensors, results: torch.Tensor) -> torch.Tensor:
    """Each row's token: named by the host, or sampled by the step before."""
    follows = inputs["follows"]
    before = results.index_select(0, follows.clamp(min=0))
    return torch.where(follows >= 0, before, inputs["tokens"])
