"""The two ways in which a batch ends before its last answer. The messages are for users and say what to do."""


class BatchRefused(Exception):
    """Nothing ran, and the same call would be refused again: a file or a value is wrong."""


class BatchStopped(Exception):
    """The run ended early. The files hold whole lines, and the same call goes on behind them."""
