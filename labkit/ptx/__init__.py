"""PTX instructions as functions for numba.cuda kernels, and what the compiler made of a kernel."""

from labkit.ptx.copies import *  # noqa: F403
from labkit.ptx.emit import NotOnThisGpu
from labkit.ptx.host import prepare, tensor_map
from labkit.ptx.matrix import *  # noqa: F403
from labkit.ptx.memory import address, load4, shared_address, store4
from labkit.ptx.values import *  # noqa: F403
from labkit.ptx.warpgroup import *  # noqa: F403
