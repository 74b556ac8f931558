"""Latent attention: keys and values of all heads are made of one latent per token, and only it is kept.

How the latent takes the place of keys and values is in `engine/model/latent_tensors.py`."""

from dataclasses import dataclass

from engine.families.family import Family
from engine.families.fields import ConfigFields
from engine.families.rope import stretch

MOST_DIM = 576  # elements of a head that the kernels take
_EPS = 1e-6  # the latent's norm has it, whatever the model's other norms have


@dataclass(frozen=True, slots=True)
class Latent:
    rank: int  # elements of the latent
    rotated: int  # elements of a query, and of the key that all heads share, which are rotated
    plain: int  # elements of a query and of a head's own key, which are not
    values: int  # elements of a head's value
    eps: float = _EPS

    @property
    def dim(self) -> int:
        """Elements of a head's query, and of the one key, over the latent."""
        return self.rank + self.rotated


def read_latent(fields: ConfigFields, family: Family) -> Latent | None:
    if not family.latent:
        return None
    if fields.raw.get("q_lora_rank") is not None:
        fields.refuse("q_lora_rank", f"is {fields.raw['q_lora_rank']}: queries that are made of a latent too")
    names = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    rank, rotated, plain, values = (
        fields.positive(name, default) for name, default in zip(names, (512, 64, 128, 128), strict=True)
    )
    if rank % 2 or rotated % 2 or (rank + rotated) % 16 or rank + rotated > MOST_DIM:
        problem = f"{rank}, with the {rotated} of qk_rope_head_dim, is not a multiple of 16 up to {MOST_DIM}"
        fields.refuse("kv_lora_rank", problem, "Serve another model.")
    return Latent(rank, rotated, plain, values)


def latent_scale(fields: ConfigFields, latent: Latent) -> float:
    """The factor of scores before the softmax: a stretched context with mscale_all_dim raises it."""
    scaling = fields.raw.get("rope_scaling") or fields.raw.get("rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    weight, scale = scaling.get("mscale_all_dim"), float((latent.plain + latent.rotated) ** -0.5)
    if kind == "default" or not weight:
        return scale
    inside = fields.inside(scaling)
    stretched = float(stretch(inside.number("factor"), inside.number("mscale_all_dim")))
    return scale * stretched * stretched
