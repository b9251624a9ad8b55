"""Start torchrun as a child that ends with its parent: `python -m pyperf_suite.ranks.launch COUNT MODULE`.

Its ranks start with SIGTERM blocked, which torchrun sends to all when one has died: it then waits until a rank can name
the dead, and does not end a Python that has just begun.
"""

from __future__ import annotations

import os
import signal
import sys

from pyperf_suite.processes import PARENT_VARIABLE, end_with_parent


def main() -> None:
    """Become torchrun, with COUNT ranks of MODULE on this machine, at a port that is free."""
    count, module = sys.argv[1:]
    # Both outlast exec, and the blocked signal reaches the ranks too.
    end_with_parent()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}")
    os.execv(sys.executable, (*launcher, "--max-restarts=0", "-m", module))


if __name__ == "__main__":
    main()
