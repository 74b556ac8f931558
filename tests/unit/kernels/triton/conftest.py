"""These files run in Triton's interpreter, which must be chosen before triton is imported: in a process of their
own, which `test_interpreter.py` one folder up starts. Elsewhere they are not collected."""

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]
