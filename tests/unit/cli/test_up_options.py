"""Options of `baton up` that contradict each other are refused before anything starts."""

import subprocess
import sys


def test_an_option_and_a_setting_of_the_same_thing_must_agree() -> None:
    command = [sys.executable, "-m", "cli", "up", "--gateways", "2", "--set", "gateway.processes=3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "--set gateway.processes=3: an option says 2; leave one of them out" in done.stderr
