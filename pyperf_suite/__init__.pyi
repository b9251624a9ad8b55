from pyperf_suite.planner.functions import explain as explain
from pyperf_suite.planner.functions import size as size
from pyperf_suite.user_kernels.api import INPUTS as INPUTS
from pyperf_suite.user_kernels.api import cuda as cuda
from pyperf_suite.user_kernels.api import empty as empty
from pyperf_suite.user_kernels.api import kernel as kernel
from pyperf_suite.user_kernels.api import launch as launch
from pyperf_suite.user_kernels.api import rand as rand
from pyperf_suite.user_kernels.api import randint as randint
from pyperf_suite.user_kernels.api import randn as randn
from pyperf_suite.user_kernels.api import watch_step as watch_step
from pyperf_suite.user_kernels.api import zeros as zeros

__version__: str
__all__: tuple[str, ...]
