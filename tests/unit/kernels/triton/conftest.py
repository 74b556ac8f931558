"""Tests in Triton's interpreter. The environment must choose it before triton is imported, so `test_interpreter.py` one
folder up runs these files in processes of their own. Other runs of pytest do not collect them."""

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]
