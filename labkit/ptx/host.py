"""What a kernel's launch needs besides its arguments: tensor maps, more than 48 KiB of shared memory."""

from __future__ import annotations

from functools import wraps

import numpy as np

from labkit import device
from labkit.errors import LabError

OPT_IN = 48 * 1024  # bytes of shared memory a block may have without asking


def tensor_map(array, box: tuple[int, int]):
    """A tensor map of a matrix, or of a stack of them, in device memory, for tma_load_2d/_3d and tma_store_2d/_3d.

    array  float16[rows, columns] or [planes, rows, columns] on the device, 16-byte aligned, its rows (and planes) a
           multiple of 16 bytes apart
    box    (rows, columns) of one copy, 256 rows and 64 columns at most; the copy is swizzled by 128 bytes

    128 bytes on the device. Raises LabError for an array that the copy engine cannot take. PTX manual: "Tensor-map".
    """
    from cuda.bindings import driver
    from numba import cuda

    pointer, pitches = _layout(array)
    kinds, swizzle = driver.CUtensorMapDataType, driver.CUtensorMapSwizzle
    boxes = [box[1], box[0], 1][: array.ndim]
    error, made = driver.cuTensorMapEncodeTiled(
        kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        array.ndim,
        pointer,
        [driver.cuuint64_t(extent) for extent in array.shape[::-1]],
        [driver.cuuint64_t(pitch) for pitch in pitches],
        [driver.cuuint32_t(extent) for extent in boxes],
        [driver.cuuint32_t(1)] * array.ndim,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        swizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if error:
        raise LabError(f"no tensor map of float16{tuple(array.shape)} in boxes of {box}: {error.name}")
    found = cuda.to_device(np.array([int(word) for word in made.opaque], np.uint64))
    found.describes = array  # a map holds an address alone: without this line the array may be freed before a launch
    return found


def _layout(array) -> tuple[int, list[int]]:
    """Address of a float16 array, bytes from row to row and plane to plane. Raises LabError where copies can't read."""
    if array.dtype != np.float16 or array.ndim not in (2, 3) or array.strides[-1] != 2:
        raise LabError(f"found {array.dtype}{array.shape} with strides {array.strides}, expected float16 rows")
    pointer = array.__cuda_array_interface__["data"][0]
    pitch = _pitch(array)
    pitches = [pitch, pitch * array.shape[-2] if array.shape[0] == 1 else array.strides[0]][: array.ndim - 1]
    if pointer % 16 or any(p % 16 for p in pitches):
        raise LabError(
            f"rows {pitch} bytes apart from address {pointer:#x}: tensor copies need multiples of 16 bytes. "
            "build the launch under @ptx.aligned_rows, which copies such matrices"
        )
    return pointer, pitches


def aligned_rows(build):
    """For a builder of a float16 product, build(a, b, out) -> launch: every launch copies what is not aligned.

    Copies of 16 bytes need rows a multiple of 16 bytes apart. Matrices that lack that travel through ones that have
    it, at every launch, so that the copies are in the time.
    """

    @wraps(build)
    def builder(a, b, out):
        if not device.MACHINE.has_gpu:
            return build(a, b, out)  # it says that it is unavailable
        wide = [_aligned(x) for x in (a, b, out)]
        launch = build(*wide)
        before = [(w, x) for w, x in zip(wide[:2], (a, b), strict=True) if w is not x]
        after = [(out, wide[2])] if wide[2] is not out else []

        def start(stream=None):
            for target, source in before:
                copy_rows(target, source, stream)
            launch(stream)
            for target, source in after:
                copy_rows(target, source, stream)

        return start if before or after else launch

    return builder


def _aligned(array):
    """The array, or room for one like it whose rows are a multiple of 16 bytes apart."""
    from numba import cuda

    rows, columns = array.shape
    if array.strides[1] == 2 and not array.__cuda_array_interface__["data"][0] % 16 and not array.strides[0] % 16:
        return array
    return cuda.device_array((rows, -(-columns // 8) * 8), np.float16)[:, :columns]


def copy_rows(target, source, stream=None) -> None:
    """Copy a float16 matrix to one with other strides, on the device."""
    from cuda.bindings import driver

    copy = driver.CUDA_MEMCPY2D()
    copy.srcMemoryType = copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    copy.srcDevice, copy.dstDevice = (x.__cuda_array_interface__["data"][0] for x in (source, target))
    copy.srcPitch, copy.dstPitch = (_pitch(x) for x in (source, target))
    copy.WidthInBytes, copy.Height = 2 * source.shape[1], source.shape[0]
    (error,) = driver.cuMemcpy2DAsync(copy, int(stream.handle) if stream else 0)
    if error:
        raise LabError(f"the driver does not copy float16{tuple(source.shape)}: {error.name}")


def _pitch(array) -> int:
    """Bytes from one row to the next; of a single row, what they would be."""
    return array.strides[-2] if array.shape[-2] > 1 else -(-2 * array.shape[-1] // 16) * 16


def prepare(kernel, grid: int | tuple[int, ...], block: int, *arguments, shared: int = 0, early: bool = False):
    """Compile `kernel` for these arguments and return launch(stream=None), which does nothing but launch it.

    grid, block  numbers of blocks (up to three) and of threads a block
    shared       bytes of dynamic shared memory, above 48 KiB if need be
    early        may start before the kernel ahead of it in the stream has ended (ptx.start_next there); it must
                 call ptx.wait_for_previous before it touches what that kernel reads or writes. From Hopper on

    Raises LabError where the GPU has less shared memory.
    """
    from cuda.core import LaunchConfig, Stream, launch
    from numba import cuda

    compiled = kernel.compile(tuple(kernel.typeof_pyval(a) for a in arguments))
    function = compiled._codelibrary.get_cufunc()  # private to numba-cuda, as is _prepare_args
    _allow_shared(kernel.py_func.__name__, function, shared)
    flat: list = []
    for kind, value in zip(compiled.argument_types, arguments, strict=True):
        compiled._prepare_args(kind, value, 0, [], flat)
    hopper = early and cuda.get_current_device().compute_capability >= (9, 0)
    overlap = {"programmatic_stream_serialization": True} if hopper else {}
    config = LaunchConfig(grid=grid, block=block, shmem_size=shared, **overlap)
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
    if nbytes > OPT_IN:  # kernels that overlap share an SM only where both ask for the same split of it and L1
        share = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        driver.cuKernelSetAttribute(share, 100, function.handle, gpu)  # per cent; a hint, so refused without harm
