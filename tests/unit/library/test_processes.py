"""An open model lives through Ctrl-C and forks, and ends with its script; importing it costs little."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.sources import ROOT

FORK = """
import os, sys, warnings
warnings.simplefilter("ignore")
from baton import LLM
llm = LLM(threads=1)
child = os.fork()
if not child:
    try:
        llm.generate("a", use_tqdm=False)
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
sys.stderr.flush()
child = os.fork()
if not child:
    llm.close()
    sys.exit(0)
os.waitpid(child, 0)
print(len(llm.generate("a", use_tqdm=False)))
"""
ENDLESS = """
from baton import LLM, SamplingParams
llm = LLM(threads=1)
print("open", flush=True)
try:
    llm.generate(["a"] * 8, SamplingParams(max_tokens=1900, ignore_eos=True), use_tqdm=False)
except KeyboardInterrupt:
    print("cancelled", len(llm.generate("a", use_tqdm=False)), flush=True)
"""
LEFT_OPEN = "from baton import LLM; llm = LLM(threads=1); print(len(llm.generate('a', use_tqdm=False)))"
IMPORTED = """
import sys
from baton import LLM, SamplingParams, AsyncLLM
print(sorted({"torch", "numpy", "starlette", "engine", "rich.progress"} & set(sys.modules)))
"""


def python(script: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=60)


def memory_files() -> set[str]:
    return {each.name for each in Path("/dev/shm").iterdir() if "baton" in each.name}


def test_a_forked_child_hears_what_to_do_and_the_parent_goes_on() -> None:
    done = python(FORK)
    assert "open it in the child" in done.stdout and done.stdout.splitlines()[-1] == "1", done
    assert done.stderr == "", "the child that ends closes nothing"


def test_ctrl_c_cancels_what_runs_and_leaves_the_model_open() -> None:
    with subprocess.Popen([sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE, text=True, cwd=ROOT) as running:
        assert running.stdout is not None and running.stdout.readline() == "open\n"
        time.sleep(1.0)
        running.send_signal(signal.SIGINT)
        begun = time.monotonic()
        assert running.stdout.readline() == "cancelled 1\n"
        assert running.wait(20) == 0 and time.monotonic() - begun < 10


def test_ctrl_c_in_a_script_shows_one_traceback() -> None:
    script = ENDLESS.replace("except KeyboardInterrupt:", "except ZeroDivisionError:").replace("* 8", "* 50")
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as running:
        assert running.stdout is not None and running.stdout.readline() == "open\n"
        time.sleep(1.0)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=30)
    assert (
        running.returncode == -signal.SIGINT and said.count("Traceback") == 1 and said.endswith("KeyboardInterrupt\n")
    )


def test_a_script_that_closes_nothing_leaves_nothing_behind() -> None:
    before, done = memory_files(), python(LEFT_OPEN)
    assert (done.stdout, done.returncode, done.stderr) == ("1\n", 0, "") and memory_files() <= before


def test_the_import_is_light() -> None:
    assert python(IMPORTED).stdout == "[]\n"


@pytest.mark.parametrize("number", range(3))
def test_the_examples_of_the_page_run(number: int) -> None:
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.DOTALL)
    assert len(examples) == 3
    done = python(examples[number])
    assert done.returncode == 0 and done.stdout.strip(), done
