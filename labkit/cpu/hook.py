"""`@cuda.jit` without a GPU: numba's simulator keeps its host side, and launches go to `labkit.cpu`."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
import warnings

from labkit.errors import LabError

SIMULATOR_API = "numba.cuda.simulator.api"


class _AfterImport(importlib.abc.MetaPathFinder):
    """Changes one module as soon as it has been imported; until then nothing of numba is imported."""

    def find_spec(self, name, path=None, target=None):
        if name != SIMULATOR_API:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            replace_jit(module)

        spec.loader.exec_module = exec_module
        return spec


def install() -> None:
    """Let kernels of numba's simulator run compiled, from the import of numba.cuda on."""
    if SIMULATOR_API in sys.modules:
        replace_jit(sys.modules[SIMULATOR_API])
        sys.modules["numba.cuda"].jit = sys.modules[SIMULATOR_API].jit
    elif not any(isinstance(f, _AfterImport) for f in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())


def replace_jit(api) -> None:
    """Make the simulator's `jit` return kernels that run compiled."""
    Simulated = api.FakeCUDAKernel

    class Kernel(Simulated):
        """A kernel of `@cuda.jit`: `kernel[grid, block, stream, shared](*arguments)`."""

        def __getitem__(self, configuration):
            return Configured(self, configuration)

        def forall(self, ntasks, tpb=0, stream=0, sharedmem=0):
            threads = tpb or 128
            return self[max(1, -(-ntasks // threads)), threads, stream, sharedmem]

        def __call__(self, *arguments):
            if not self._device and not in_simulator(Simulated):
                raise LabError(f"{self.__name__} needs a grid and a block: {self.__name__}[grid, block](...)")
            return Simulated.__call__(self, *arguments)

    class Configured:
        """A kernel with a launch configuration of its own."""

        def __init__(self, kernel, configuration):
            if not isinstance(configuration, tuple) or not 2 <= len(configuration) <= 4:
                raise LabError(f"{kernel.__name__}[...] takes grid, block and, if wanted, stream and shared bytes")
            self.kernel = kernel
            self.grid, self.block, self.shared = *configuration[:2], (*configuration, 0, 0)[3]

        def __call__(self, *arguments):
            from labkit.cpu import Unsupported, launch

            kernel = self.kernel
            if launch.settings.get().simulator:
                return self.simulate(*arguments)
            asked = launch.Launch(
                kernel.fn, self.grid, self.block, self.shared, bool(kernel.options.get("fastmath")), kernel.signature
            )
            try:
                return launch.execute(asked, arguments)
            except Unsupported as e:
                say_once(f"{e}: not compiled here; {kernel.__name__} runs in numba's simulator, slowly")
            return self.simulate(*arguments)

        def simulate(self, *arguments):
            Simulated.__getitem__(self.kernel, (self.grid, self.block, 0, self.shared))
            return Simulated.__call__(self.kernel, *arguments)

    def jit(func_or_sig=None, device=False, **options):
        def wrap(function):
            kernel = Kernel(function, device=device, fastmath=bool(options.get("fastmath")))
            kernel.options, kernel.signature = options, signature
            return kernel

        plain = callable(func_or_sig) and not type(func_or_sig).__module__.startswith("numba")
        signature = None if plain else func_or_sig
        return wrap(func_or_sig) if plain else wrap

    api.jit = jit


def in_simulator(kernel_class) -> bool:
    """Whether a simulated launch is running, so that this call comes from one of its threads."""
    return sys.modules[kernel_class.__module__]._get_kernel_context() is not None


_said: set[str] = set()


def say_once(text: str) -> None:
    """Warn, but never twice in the same words."""
    if text not in _said:
        _said.add(text)
        warnings.warn(text, stacklevel=3)  # at the launch
