"""Where a TCP receiver listens, and which address it hands to writers."""

import socket
from dataclasses import replace

import pytest

from kvtransfer.address import bare, dialled_address, host_and_port
from kvtransfer.frames import PoolHandle
from kvtransfer.transfer import Span, TransferError
from mesh.config.config_checks import ConfigError
from tests.unit.kvtransfer.tcp_transport import TICKET, tcp


async def test_a_port_in_use_is_an_error_that_names_it(new_pair):
    async with new_pair(tcp()) as pair:
        port = int(PoolHandle.unpack(pair.receiver.handle(7)).address.split(":")[1])
        with pytest.raises(ConfigError, match=f"transport_host: .* 127.0.0.1, port {port}"):
            await tcp(port=port).receive(pair.target, 1)


async def test_an_address_that_is_not_this_hosts_is_an_error_that_names_the_setting(new_pair):
    async with new_pair(tcp()) as pair:
        with pytest.raises(ConfigError, match=r"transport_host: tcp pages cannot listen on 192\.0\.2\.1"):
            await tcp(host="192.0.2.1").receive(pair.target, 1)
        with pytest.raises(ConfigError, match=r"transport_host: tcp pages cannot listen on nowhere\.invalid"):
            await tcp(host="nowhere.invalid").receive(pair.target, 1)


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "[::1]"])
async def test_pages_travel_to_every_loopback_address(new_pair, host):
    if ":" in host and not has_ipv6():
        pytest.skip("this machine has no IPv6; what a handle says of ::1 is tested without it")
    async with new_pair(tcp(host=host)) as pair:
        span = Span(0, 3, 5, 0, 6)
        pair.open(TICKET, [span])
        await pair.writer.write(TICKET, [span], 0)
        await pair.landed(1)
        assert pair.same(span)


@pytest.mark.parametrize("host", ["::1", "[::1]", "fe80::1%eth0"])
def test_what_a_handle_says_of_an_ipv6_receiver_is_what_its_writer_dials(host):
    """It needs no IPv6: the socket's own address stands in for a bound socket."""
    bound = (host.strip("[]"), 7001, 0, 0)
    assert bare(host) == bound[0], "a socket takes no brackets"
    assert host_and_port(dialled_address(host, "", bound)) == bound[:2]
    assert host_and_port(dialled_address("::", "[2001:db8::7]", bound)) == ("2001:db8::7", 7001)


@pytest.mark.parametrize("address", ["]:7001", "[]:7001", ":7001", "[::1]:0", "a"])
def test_an_address_without_a_host_or_a_port_is_not_dialled(address):
    with pytest.raises(ValueError, match="in the address"):
        host_and_port(address)


def test_a_wildcard_without_an_address_to_dial_is_refused():
    assert "set transport_host to this host's address, or advertise_host" in tcp(host="0.0.0.0").available()
    assert tcp(host="0.0.0.0", advertise_host="10.0.0.7").available() == ""
    assert tcp(host="localhost").available() == ""


async def test_a_wildcard_receiver_hands_out_the_advertised_host_and_others_their_own(new_pair):
    for host, wanted in (("0.0.0.0", "localhost"), ("127.0.0.1", "127.0.0.1")):
        async with new_pair(tcp(host=host, advertise_host="localhost")) as pair:
            assert PoolHandle.unpack(pair.receiver.handle(7)).address.split(":")[0] == wanted


@pytest.mark.parametrize(
    "address", ["127.0.0.1:" + "9" * 30, "127.0.0.1:65536", "127.0.0.1:0", ":7001", "a\0b:7001", "x"]
)
async def test_a_handle_with_an_address_that_no_socket_takes_is_refused(new_pair, address):
    """Any other error than TransferError ends the task that dials decode workers."""
    async with new_pair(tcp()) as pair:
        handle = replace(PoolHandle.unpack(pair.receiver.handle(8)), address=address).pack()
        with pytest.raises(TransferError, match="in the address"):
            await tcp().connect(handle, pair.source, 8)
