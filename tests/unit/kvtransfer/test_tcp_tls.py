"""Pages over TCP with TLS: a peer without a certificate of the CA moves no byte; renewed files count at once."""

import asyncio
import random
import ssl
from contextlib import asynccontextmanager

import pytest

from kvtransfer.frames import Greeting, PoolHandle
from kvtransfer.tcp import Tcp
from kvtransfer.transfer import Span, TransferError
from mesh.network.tls import TlsFiles
from tests.unit.certificates import Authority, files_in

TICKET = bytes(range(32))
SPAN = Span(0, 3, 5, 0, 6)


class TrustingSocket(TlsFiles):
    """Shows no certificate, but trusts the mesh's authority."""

    def dialling_context(self):
        return ssl.create_default_context(cadata=self.current().authority.decode())


def tcp(tls):
    return Tcp(random.SystemRandom(), tls=tls)


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "authority")


@asynccontextmanager
async def dialled(pair, transport, writer=9):
    way = await transport.connect(pair.receiver.handle(writer), pair.source, writer)
    try:
        yield way
    finally:
        way.close()


async def moves(pair, transport):
    """A page travels over a new connection of this transport."""
    pair.arrived.clear()
    pair.target.view(SPAN.target, 0, 6)[:] = bytes(6 * 4096)
    pair.open(TICKET, [SPAN])
    async with dialled(pair, transport) as way:
        await way.write(TICKET, [SPAN], 0)
        await pair.landed(1)
    assert pair.same(SPAN)


@pytest.mark.parametrize("peer", ["no certificate", "another CA's certificate"])
async def test_a_writer_without_a_certificate_of_the_ca_moves_no_page(new_pair, tmp_path, authority, peer):
    if peer == "no certificate":
        bare = authority.sign(tmp_path / "bare")
        tls = TrustingSocket(bare / "certificate.pem", bare / "key.pem", bare / "ca.pem")
    else:
        mixed = Authority(tmp_path / "other").sign(tmp_path / "mixed")
        (mixed / "ca.pem").write_bytes(authority.certificate.read_bytes())
        tls = files_in(mixed)
    async with new_pair(tcp(authority.files(tmp_path / "decode"))) as pair:
        pair.open(TICKET, [SPAN])
        with pytest.raises(TransferError, match="cannot be reached"):
            await tcp(tls).connect(pair.receiver.handle(9), pair.source, 9)
        assert pair.receiver.refused.total() == 0, "the connection got past the handshake"
        await moves(pair, tcp(authority.files(tmp_path / "prefill")))


async def test_a_greeting_in_plain_text_is_not_even_read(new_pair, tmp_path, authority):
    async with new_pair(tcp(authority.files(tmp_path / "decode"))) as pair:
        handle = PoolHandle.unpack(pair.receiver.handle(9))
        reader, stream = await pair.dial()
        stream.write(Greeting(handle.token, 9, handle.receiver, pair.target.shape).pack())
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(200), 10)
        assert pair.receiver.refused.total() == 0
        stream.close()


async def test_negative_control_without_tls_any_writer_with_the_handle_moves_pages(new_pair):
    async with new_pair(tcp(None)) as pair:
        await moves(pair, tcp(None))


async def test_a_writer_sends_nothing_to_a_receiver_of_another_ca(new_pair, tmp_path, authority):
    async with new_pair(tcp(Authority(tmp_path / "other").files(tmp_path / "decode"))) as pair:
        with pytest.raises(TransferError, match="certificate"):
            await tcp(authority.files(tmp_path / "prefill")).connect(pair.receiver.handle(9), pair.source, 9)


@pytest.mark.parametrize("receiver_has_tls", [True, False])
async def test_tls_on_one_side_only_is_refused_before_anything_is_sent(new_pair, tmp_path, authority, receiver_has_tls):
    files = authority.files(tmp_path / "worker")
    ours, theirs = (None, files) if receiver_has_tls else (files, None)
    async with new_pair(tcp(theirs)) as pair:
        with pytest.raises(TransferError, match=r"set tls_\* on both"):
            await tcp(ours).connect(pair.receiver.handle(9), pair.source, 9)


async def test_the_certificate_may_name_the_mesh_instead_of_the_host(new_pair, tmp_path, authority):
    named = authority.files(tmp_path / "decode", name="baton.internal", names="DNS:baton.internal")
    async with new_pair(tcp(named)) as pair:
        await moves(pair, tcp(named))
        with pytest.raises(TransferError, match="certificate"):
            await tcp(authority.files(tmp_path / "prefill")).connect(pair.receiver.handle(9), pair.source, 9)


async def test_renewed_files_are_used_for_the_next_connection(new_pair, tmp_path, authority):
    prefill = tcp(authority.files(tmp_path / "prefill"))
    async with new_pair(tcp(authority.files(tmp_path / "decode"))) as pair:
        await moves(pair, prefill)
        new = Authority(tmp_path / "new")
        new.sign(tmp_path / "decode")
        with pytest.raises(TransferError):  # it still shows and trusts the old authority's
            await prefill.connect(pair.receiver.handle(9), pair.source, 9)
        new.sign(tmp_path / "prefill")
        await moves(pair, prefill)
        pair.open(TICKET, [SPAN])
        await pair.writer.write(TICKET, [SPAN], 0)  # connections that stand are left alone
        await pair.landed(2)


async def test_a_writer_whose_ca_is_no_longer_trusted_is_refused(new_pair, tmp_path, authority):
    """It trusts both authorities, so that nothing but the receiver's check stops it."""
    new = Authority(tmp_path / "new")
    both = authority.sign(tmp_path / "prefill") / "ca.pem"
    both.write_bytes(authority.certificate.read_bytes() + new.certificate.read_bytes())
    prefill = tcp(files_in(tmp_path / "prefill"))
    async with new_pair(tcp(authority.files(tmp_path / "decode"))) as pair:
        await moves(pair, prefill)
        new.sign(tmp_path / "decode")
        with pytest.raises(TransferError):
            await prefill.connect(pair.receiver.handle(9), pair.source, 9)
        assert pair.receiver.refused.total() == 0
