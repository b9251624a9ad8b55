"""An answer with signs that ASCII lacks, written where they cannot be, and where nothing can."""

import os
import re
import subprocess
import sys
from pathlib import Path


def test_what_the_encoding_of_the_output_lacks_is_replaced_and_a_full_disk_ends_with_exit_code_3():
    command = [sys.executable, "-m", "pyperf_suite", "explain", "4096", "4096", "4096", "--gpu", "H100"]
    for encoding in ("ascii", "latin-1"):
        done = subprocess.run(command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": encoding})
        assert (done.returncode, done.stderr) == (0, b"")
        assert b"  ? Predicted" in done.stdout
    for words in (command, [*command[:3], "--help"]):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 3
        assert re.fullmatch(r"Error: [^\n]*No space left on device[^\n]*\n", done.stderr)
