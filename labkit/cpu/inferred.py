"""The types of a kernel's variables, as numba infers them; kept on disk, since that takes a good part of a second."""

from __future__ import annotations

import ast
from dataclasses import dataclass

import numpy as np
from numba import typeof
from numba.core.errors import NumbaError

from labkit.cpu import generate, kept, keys, one_thread, private
from labkit.cpu.code import unparse
from labkit.cpu.tree import Lowered

INDEX_TYPES = dict.fromkeys(one_thread.FLAT, np.int64) | dict.fromkeys(generate.CONTEXT, np.int32)
INDEX_TYPES |= {"_t": np.int64, "_lane": np.int32, "_warpsize": np.int32, "_lanemask_lt": np.uint32}


@dataclass(frozen=True)
class Found:
    """A variable's type: its name, and the dtype of an array that can keep such values, if any can."""

    type: str
    dtype: np.dtype | None


def infer(lowered: Lowered, names: dict, own: dict, types: tuple, wanted: list[str]) -> dict[str, Found]:
    """What the `wanted` variables are. Raises BadKernel for a kernel that numba can't type, naming its own line."""
    tree = one_thread.flat_function(lowered)
    return kept.value(
        "types",
        lambda: kept.key_of(unparse(tree), names, own, " ".join(wanted), *map(keys.type_text, types)),
        lambda: _found(tree, lowered, names, types, wanted),
    )


def _found(tree: ast.FunctionDef, lowered: Lowered, names: dict, types: tuple, wanted: list[str]) -> dict[str, Found]:
    names = dict(names)
    exec(compile(ast.fix_missing_locations(ast.Module([tree], [])), lowered.source.file, "exec"), names)
    index_types = tuple(typeof(INDEX_TYPES[n](0)) for n in one_thread.FLAT)
    try:
        inferred = private.infer(names["flat"], (*index_types, *types))
    except NumbaError as e:
        raise private.one_line(e, lowered.source.name) from e
    return {v: Found(str(inferred.get(v)), private.storable(inferred.get(v))) for v in wanted}
