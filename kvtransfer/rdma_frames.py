"""A receiver's offer to a writer over RDMA, behind its welcome: where its pages lie, and NIXL's metadata with the key.

Nothing here is trusted. The writer turns the offer's addresses into those of pages, so an offer counts only if its
regions hold exactly the pages that the welcome names; sizes are bounded before anything is read. NIXL's metadata have a
format of their own, which NIXL parses; the addresses of a write must lie in the memory that they name."""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvtransfer.frames import Malformed

MOST_METADATA_BYTES = 1 << 20
MOST_REGIONS = 1 << 14
REGION_BYTES = 7 << 29  # 3.5 GiB: devices get slow at larger registrations
PROBE_BYTES = 64
JOINED, READY = b"BJOI", b"BRDY"  # the writer has written its probe; the receiver has found it

Places = npt.NDArray[np.int64]

_OFFER = struct.Struct("<4sHHIIQ")  # magic, version, zero, regions, bytes of metadata, probe's address
_REGION = struct.Struct("<QQ")  # address, pages
_VERSION = 1
_ADDRESSES = 1 << 63  # addresses of programs are below it


@dataclass(frozen=True, slots=True)
class PageRegion:
    """Pages one behind the other, registered as one piece."""

    address: int
    pages: int


@dataclass(frozen=True, slots=True)
class RdmaOffer:
    regions: tuple[PageRegion, ...]
    probe: int  # address of `PROBE_BYTES` bytes beside the pool, into which the writer writes first
    metadata: bytes

    def pack(self) -> bytes:
        head = _OFFER.pack(b"BOFF", _VERSION, 0, len(self.regions), len(self.metadata), self.probe)
        return head + b"".join(_REGION.pack(at.address, at.pages) for at in self.regions) + self.metadata


def read_offer(take: Callable[[int], bytes], pages: int, page_bytes: int) -> RdmaOffer:
    """The offer that `take` reads, if it holds `pages` pages of this size; else Malformed."""
    magic, version, _, regions, metadata_bytes, probe = _OFFER.unpack(take(_OFFER.size))
    if magic != b"BOFF" or version != _VERSION:
        raise Malformed(f"an offer begins with {magic!r}, version {version}: run one release on both tiers")
    if not (0 < regions <= MOST_REGIONS and 0 < metadata_bytes <= MOST_METADATA_BYTES):
        raise Malformed(f"an offer of {regions} regions and {metadata_bytes} bytes of metadata")
    found = tuple(PageRegion(*row) for row in _REGION.iter_unpack(take(regions * _REGION.size)))
    ends = [(probe, PROBE_BYTES), *((at.address, at.pages * page_bytes) for at in found)]
    if not all(0 < address < address + size < _ADDRESSES for address, size in ends):
        raise Malformed("an offer's pages lie outside of any memory")
    if sum(at.pages for at in found) != pages:
        raise Malformed(f"an offer of {sum(at.pages for at in found)} pages by a receiver of {pages}")
    return RdmaOffer(found, probe, take(metadata_bytes))


def page_regions(address: int, pages: int, page_bytes: int, most_bytes: int = REGION_BYTES) -> tuple[PageRegion, ...]:
    """Cut a pool into regions of whole pages."""
    step = max(1, most_bytes // page_bytes)
    return tuple(PageRegion(address + first * page_bytes, min(step, pages - first)) for first in range(0, pages, step))


@dataclass(frozen=True, slots=True)
class RegionPages:
    """Address and region of each page of a pool. A peer states how many pages there are, so nothing here grows with
    their number."""

    pages: int  # pages in all regions
    _first: Places  # first page of each region
    _address: Places  # address of each region
    _page_bytes: int

    @classmethod
    def of(cls, regions: Sequence[PageRegion], page_bytes: int) -> "RegionPages":
        ends = np.cumsum([at.pages for at in regions], dtype=np.int64)
        first = ends - np.array([at.pages for at in regions], np.int64)
        return cls(int(ends[-1]), first, np.array([at.address for at in regions], np.int64), page_bytes)

    def regions(self, pages: Places) -> Places:
        return np.searchsorted(self._first, pages, side="right") - 1

    def addresses(self, pages: Places) -> Places:
        regions = self.regions(pages)
        return self._address[regions] + (pages - self._first[regions]) * self._page_bytes


def joined_runs(
    source: Places, target: Places, sizes: Places, apart: npt.NDArray[np.bool_]
) -> tuple[Places, Places, Places]:
    """Source, target and size of each piece, with spans joined that are neighbours at both ends: a device is fast at
    large pieces. Where `apart` is true a span lies in another region than the one before it, and they stay two."""
    begins = np.ones(len(sizes), bool)
    begins[1:] = apart | (source[1:] != source[:-1] + sizes[:-1]) | (target[1:] != target[:-1] + sizes[:-1])
    first = np.flatnonzero(begins)
    return source[first], target[first], np.add.reduceat(sizes, first)
