"""A family of models is what it has beside Llama. `engine/families/table.py` has a row of this for each family.

A row names fields of config.json and tensors of the checkpoint, with the meaning and the defaults that transformers
gives them. What a row does not name, the family does not have: `engine/model/config.py` refuses it by field."""

from dataclasses import dataclass
from enum import Enum

Setting = str | bool  # a field of config.json that decides, or the same for all models of the family


@dataclass(frozen=True, slots=True)
class Norms:
    """The norms of a layer by place, each under its tensor's name; an empty name: the family has none there."""

    before_attention: str = "input_layernorm"
    behind_attention: str = ""  # before the residual is added
    before_mlp: str = "post_attention_layernorm"
    behind_mlp: str = ""
    kind: str = "rms"  # rms | layer: takes the mean away and adds a bias
    eps: str = "rms_norm_eps"
    default_eps: float = 1e-6
    added: float = 0.0  # to every weight of a norm: the checkpoint holds what a weight differs from this number
    queries: str = ""  # norms of queries and keys: "" | head | width (over all heads together)

    def __post_init__(self) -> None:
        if self.kind == "layer" and (self.behind_attention or self.behind_mlp or self.queries):
            raise ValueError("a layer norm stands before attention and MLP only")


@dataclass(frozen=True, slots=True)
class LinearBiases:
    qkv: Setting = False
    output: Setting = False
    mlp: Setting = False
    default: bool = False  # where config.json leaves the field out


@dataclass(frozen=True, slots=True)
class Tensors:
    """The names of a layer's matrices, in the order in which they are stacked. One name: the checkpoint has stacked
    them."""

    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    down: str = "down_proj"
    gated: bool = True  # else the first product of the MLP has no gate


@dataclass(frozen=True, slots=True)
class Experts:
    """The fields of a mixture of experts, and the tensors of its layers. Matrices of experts have a tensor each, or, as
    transformers holds them, one for all."""

    count: int  # where config.json leaves num_experts and num_local_experts out
    chosen: int  # where it leaves num_experts_per_tok out
    width: str = "moe_intermediate_size"  # field with the width of each expert
    default_width: int = 0  # where it leaves that field out
    normalised: Setting = "norm_topk_prob"  # the weights of a row's experts are divided by their sum
    shared: str = ""  # field with the width of the expert that computes every row; empty: the family has none
    default_shared: int = 0
    some_layers: bool = False  # decoder_sparse_step and mlp_only_layers say which layers have experts
    dense_first: str = ""  # field: so many layers at the beginning have no experts
    shared_each: str = ""  # `shared` counts experts of this width, a field's; empty: `shared` is the width itself
    shared_block: str = "shared_expert"
    shared_gated: bool = True  # the expert that computes every row is weighed by a gate of its own
    factor: str = ""  # field: the weights of a row's experts are multiplied by it
    block: str = "mlp"  # name of the block in checkpoints where matrices have a tensor each
    gate_up: tuple[str, ...] = ("gate_proj", "up_proj")  # one name: gate and up alternate, output by output
    down: str = "down_proj"
    router: str = "gate"
    biases: bool = False  # the router and each expert's products have them
    inputs_first: bool = False  # a tensor for all experts is [experts, inputs, outputs]
    activation: str = ""  # what experts compute between their products, whatever `Family.activation` calls it


class Windows(Enum):
    """Which layers see only the last `sliding_window` tokens."""

    NONE = 1  # no layer
    ALL = 2  # every layer, where the field stands
    SWITCHED = 3  # those from `max_window_layers` on or by `layer_types`, where `use_sliding_window` is on, as in Qwen
    TYPED = 4  # those that `layer_types` calls sliding_attention


@dataclass(frozen=True, slots=True)
class Ropes:
    theta: float = 10000.0  # where config.json leaves rope_theta out
    partial: float | None = None  # default of partial_rotary_factor; None: the family rotates whole heads
    interleaved: bool = False  # elements 2i and 2i + 1 are a pair, not i and i + half
    local_theta: float = 0.0  # sliding layers have a rope of their own, with this base by default; 0: they do not
    local_field: str = ""  # field of that base in old folders
    original_context: int = 0  # where config.json leaves original_max_position_embeddings out; 0: the context
    names: tuple[tuple[str, str], ...] = ()  # other names of kinds, which this family gives them
    parameters: tuple[tuple[str, str | float | bool], ...] = ()  # where config.json leaves all of them out
    without: str = ""  # field with a number per layer: 0 where the layer has no rope
    without_interval: str = ""  # field: each so-many-th layer has none, where the former field is left out


@dataclass(frozen=True, slots=True)
class Scalars:
    """ConfigFields that multiply or bound numbers on their way; an empty name: the family has none."""

    embedding: str = ""
    embedding_is_root: bool = False  # embeddings are multiplied by the root of their width
    attention: str = ""  # what scores are multiplied by
    attention_root: str = ""  # what scores are divided by the root of
    attention_cap: str = ""
    residual: str = ""  # what attention and MLP add to the residual is multiplied by
    logits: str = ""  # what logits are divided by
    logits_cap: str = ""
    qkv_limit: str = ""  # what queries, keys and values are brought into, from below and above
    defaults: tuple[tuple[str, float | None], ...] = ()  # values of fields that are left out; None: no cap


@dataclass(frozen=True, slots=True)
class Family:
    model_type: str
    architecture: str
    norms: Norms = Norms()
    biases: LinearBiases = LinearBiases()
    tensors: Tensors = Tensors()
    experts: Experts | None = None
    ropes: Ropes = Ropes()
    scalars: Scalars = Scalars()
    latent: bool = False  # keys and values are made of a latent
    windows: Windows = Windows.NONE
    default_window: int | None = None  # where config.json leaves sliding_window out
    window_period: int = (
        0  # TYPED: each so-many-th layer sees everything, where `layer_types` is left out; 0: none does
    )
    period_field: str = ""  # field of that number
    sinks: bool = False  # each head has a score beside those of the slots, which takes its share and adds nothing
    kv_heads: int = 0  # where config.json leaves num_key_value_heads out; 0: as many as heads
    head_dim: int = 0  # where it leaves head_dim out; 0: hidden_size / num_attention_heads
    activation: str = "hidden_act"
    default_activation: str = "silu"
    old_activations: tuple[tuple[str, str], ...] = ()  # names by which old folders mean another function
    tied: bool = False  # where it leaves tie_word_embeddings out
    refused: tuple[str, ...] = ()  # fields that must be off, since they change the computation
    fixed: tuple[tuple[str, float | str], ...] = ()  # fields that must have this value or be left out
