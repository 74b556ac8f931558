"""The envelopes of each channel: of the end that dials, and of the end that listens."""

from mesh.messages.codec import DOWN, KV_BACK, KV_OUT, UP, Envelope
from mesh.network.interface import Channel

ENVELOPES: dict[Channel, tuple[Envelope, Envelope]] = {Channel.ATTACH: (DOWN, UP), Channel.KV: (KV_OUT, KV_BACK)}
