"""What a kernel's launch needs besides its arguments: tensor maps, more than 48 KiB of shared memory."""

from __future__ import annotations

import numpy as np

from labkit import device
from labkit.errors import LabError


def tensor_map(array, box: tuple[int, int]):
    """A tensor map of a matrix in device memory, for tma_load_2d and tma_store_2d: 128 bytes on the device.

    array  float16[rows, columns] on the device, 16-byte aligned, its rows a multiple of 16 bytes apart
    box    (rows, columns) of one copy, 256 rows and 64 columns at most; the copy is swizzled by 128 bytes

    Raises LabError for an array that the copy engine cannot take. PTX manual: "Tensor-map".
    """
    from cuda.bindings import driver
    from numba import cuda

    pointer, pitch = _layout(array)
    rows, columns = array.shape
    kinds, swizzle = driver.CUtensorMapDataType, driver.CUtensorMapSwizzle
    error, made = driver.cuTensorMapEncodeTiled(
        kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        2,
        pointer,
        [driver.cuuint64_t(columns), driver.cuuint64_t(rows)],
        [driver.cuuint64_t(pitch)],
        [driver.cuuint32_t(box[1]), driver.cuuint32_t(box[0])],
        [driver.cuuint32_t(1)] * 2,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        swizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if error:
        raise LabError(f"no tensor map of float16{tuple(array.shape)} in boxes of {box}: {error.name}")
    return cuda.to_device(np.array([int(word) for word in made.opaque], np.uint64))


def _layout(array) -> tuple[int, int]:
    """Address and pitch in bytes of a float16 matrix. Raises LabError where 16-byte copies cannot read it."""
    if array.dtype != np.float16 or array.ndim != 2 or array.strides[1] != 2:
        raise LabError(f"found {array.dtype}{array.shape} with strides {array.strides}, expected float16 rows")
    pointer = array.__cuda_array_interface__["data"][0]
    pitch = array.strides[0] if array.shape[0] > 1 else -(-2 * array.shape[1] // 16) * 16  # one row has no next one
    if pointer % 16 or pitch % 16:
        raise LabError(
            f"rows {pitch} bytes apart from address {pointer:#x}: tensor copies need multiples of 16 bytes. "
            "ptx.pitched(array) makes a copy that has them"
        )
    return pointer, pitch


def prepare(kernel, grid: int, block: int, *arguments, shared: int = 0, cluster: int = 1):
    """Compile `kernel` for these arguments and return launch(stream=None), which does nothing but launch it.

    grid, block  numbers of blocks and of threads a block
    shared       bytes of dynamic shared memory, above 48 KiB if need be
    cluster      blocks a cluster (Hopper): they run side by side and reach each other's shared memory; divides grid

    Raises LabError where the GPU has less shared memory.
    """
    from cuda.core import LaunchConfig, Stream, launch

    compiled = kernel.compile(tuple(kernel.typeof_pyval(a) for a in arguments))
    function = compiled._codelibrary.get_cufunc()  # private to numba-cuda, as is _prepare_args
    _allow_shared(kernel.py_func.__name__, function, shared)
    flat: list = []
    for kind, value in zip(compiled.argument_types, arguments, strict=True):
        compiled._prepare_args(kind, value, 0, [], flat)
    clustered = {"cluster": cluster, "grid": grid // cluster} if cluster > 1 else {"grid": grid}
    config = LaunchConfig(block=block, shmem_size=shared, **clustered)
    default = Stream.from_handle(0)

    def start(stream=None, _alive=arguments):
        launch(stream or default, config, function.kernel, *flat)

    return start


def _allow_shared(name: str, function, nbytes: int) -> None:
    from cuda.bindings import driver
    from numba import cuda

    gpu = cuda.get_current_device().id
    limit = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    most = int(driver.cuDeviceGetAttribute(limit, gpu)[1])
    if nbytes > most:
        raise LabError(
            f"{name} wants {nbytes:,} bytes of shared memory a block; {device.MACHINE.name} has {most:,}. "
            "Fewer stages or smaller tiles need less"
        )
    wanted = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    (error,) = driver.cuKernelSetAttribute(wanted, nbytes, function.handle, gpu)
    if error:
        raise LabError(f"the driver refuses {nbytes:,} bytes of shared memory: {error.name}")
