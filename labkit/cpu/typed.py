"""The number types by CUDA's names, and functions of declared types.

As in numba-cuda, arguments are converted to the declared types and results have the declared type.
"""

import numpy as np

from labkit.cpu.llvm import compiled

C_TYPES = {"float": "float32", "double": "float64", "half": "float16", "char": "int8", "short": "int16"}
C_TYPES |= {"int": "int32", "ll": "int64", "uchar": "uint8", "ushort": "uint16", "uint": "uint32", "ull": "uint64"}
CASTS = {name: getattr(np, name) for name in C_TYPES.values()} | {"bool": np.bool_}


def typed(make, results, parameters, inner=None):
    """What ``make()`` gives, of arguments made ``parameters`` (then to ``inner``), its result as ``results``."""
    implementation, casts = make(), [CASTS[name] for name in parameters]
    insides = [CASTS[inner]] * len(casts) if inner else casts
    (cast, into), (cast_y, into_y), (cast_z, into_z) = [*zip(casts, insides, strict=True), *[(None, None)] * 2][:3]
    give, also = CASTS[results[0]], CASTS[results[-1]]
    if len(results) == 2:
        first = give
        give = compiled(lambda values: (first(values[0]), also(values[1])))
    if len(casts) == 1:
        return compiled(lambda x: give(implementation(into(cast(x)))))
    if len(casts) == 2:
        return compiled(lambda x, y: give(implementation(into(cast(x)), into_y(cast_y(y)))))
    return compiled(lambda x, y, z: give(implementation(into(cast(x)), into_y(cast_y(y)), into_z(cast_z(z)))))
