"""The TCP transport as the tests open it."""

import random

from kvtransfer.tcp import Tcp, TcpOptions

TICKET = bytes(range(32))


def tcp(**options):
    return Tcp(random.SystemRandom(), TcpOptions(**options))
