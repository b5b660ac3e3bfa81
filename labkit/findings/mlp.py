"""Chapter 05: what a block of layers moves, fused and not, who wins at which width, and why."""

from __future__ import annotations

import pandas as pd

from labkit import device, records
from labkit.findings.roofline import sheet
from labkit.tables import numbered, of_one_source, or_recorded, peaks, power, text, value
from labkit.traffic import Cost, predict_ms

__all__ = [
    "block_rows",
    "crossover",
    "epilogue_table",
    "library_best",
    "mlp_answer",
    "mlp_batches",
    "mlp_budget",
    "mlp_gain",
    "mlp_gains",
    "mlp_most",
    "mlp_rates",
    "mlp_ratio",
    "mlp_rows",
    "mlp_widths",
    "takeaways_05",
    "tensor_cores_or_not",
    "widest",
]

ROOM = 227 * 1024  # bytes of shared memory that a block of Hopper can have
LIBRARIES = ("cublas", "cublas-lt", "torch-compile")
OTHERS = ("unfused", "cublas", "epilogue", "cublas-lt", "torch-compile")


def mlp_ratio(layers: int) -> float:
    """The bytes of rows of `layers` products, each but the last with bias and activation apart, over those of one."""
    return float(layers + 2 * (layers - 1))


def widest(layers: int) -> int:
    """The widest layers, in multiples of 16, whose float16 weights all fit into a block's shared memory."""
    return max(w for w in range(16, 1024, 16) if layers * w * (2 * w + 16) <= ROOM)


def mlp_budget(costs: dict[int, dict[str, Cost]], gpu: str | None = None) -> str:
    """By width: MB that each version moves, FLOPs a byte of the fused one, its roof on the data sheet, least ms."""
    there = device.find_gpu(gpu or records.DEFAULT_DEVICE)
    ridge = sheet(there).ridge("fp16")
    lines = []
    for width, versions in costs.items():
        fused = versions["fused"]
        lines.append(
            {
                "width": width,
                **{f"{v} MB": versions[v].bytes / 1e6 for v in ("unfused", "cublas", "epilogue", "fused")},
                "FLOPs a byte": fused.intensity,
                "its roof": "tensor cores" if fused.intensity > ridge else "memory",
                "least ms": predict_ms(fused, there, "fp16"),
            }
        )
    table = pd.DataFrame(lines)
    sizes = {c: "{:.0f}" for c in table if c.endswith("MB")}
    shown = text(table, **sizes, **{"FLOPs a byte": "{:.0f}", "least ms": "{:.3f}"})
    return f"{shown}\nfloat16, {there.name}, data sheet: the ridge stands at {ridge:.0f} FLOPs a byte"


def epilogue_table(apart: dict[str, Cost], one: dict[str, Cost]) -> str:
    """For each epilogue: the kernels and KB that it takes apart (model), and in one kernel (counted)."""
    table = pd.DataFrame(
        {
            "epilogue": list(one),
            "kernels apart": [apart[e].launches for e in one],
            "KB apart": [apart[e].bytes / 1e3 for e in one],
            "KB in one": [c.bytes / 1e3 for c in one.values()],
            "times": [apart[e].bytes / c.bytes for e, c in one.items()],
        }
    )
    shown = text(table, **dict.fromkeys(("KB apart", "KB in one"), "{:.1f}"), times="{:.2f}×")
    return f"{shown}\napart: cost model; in one: counted on the CPU"


# what was measured


def mlp_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, if the first source has our kernel beside the library; else the recorded ones, and says so."""
    whole = {"fused", "cublas", "cublas-lt"} <= set(block_rows(rows, width=64, layers=4)["variant"])
    return or_recorded(rows, whole, "fused_mlp", "the fused kernel and the library were not both measured")


def block_rows(rows: pd.DataFrame, **where) -> pd.DataFrame:
    """The float16 rows of the first source at these parameters (batch, width, layers); default: 2²⁰ rows."""
    rows = of_one_source(rows)
    wanted = {"dtype": "float16", "batch": 1 << 20, **where}
    for key, of in wanted.items():
        rows = rows[rows[key] == of]
    return rows


def mlp_gain(rows: pd.DataFrame, over: str, **where) -> float:
    """How many times the fused kernel's time another variant takes; default: width 64, four layers, 2²⁰ rows."""
    here = block_rows(rows, **{"width": 64, "layers": 4, **where})
    return value(here, "median_ms", variant=over) / value(here, "median_ms", variant="fused")


def mlp_gains(rows: pd.DataFrame, **where) -> pd.DataFrame:
    """Every variant's time, and its bytes, over those of the fused kernel at the same sizes: `factor`, `promised`."""
    found = block_rows(rows, **where)
    keys = ["batch", "width", "layers"]
    base = found[found["variant"] == "fused"].set_index(keys)[["median_ms", "bytes"]]
    base = base.reindex(pd.MultiIndex.from_frame(found[keys]))
    return found.assign(
        factor=found["median_ms"].to_numpy() / base["median_ms"].to_numpy(),
        promised=found["bytes"].to_numpy() / base["bytes"].to_numpy(),
    )


def mlp_answer(rows: pd.DataFrame) -> str:
    """The table for someone in a hurry: width 64, four layers, 2²⁰ rows."""
    layers = 4
    found, hidden = mlp_gains(rows, width=64, layers=layers), layers - 1
    # of torch.compile's only the generated code tells
    kernels = {"unfused": layers + 2 * hidden, "cublas": layers + hidden, "epilogue": layers, "cublas-lt": layers}
    kernels["fused"] = 1
    table = pd.DataFrame(
        {
            "variant": found["variant"],
            "kernels": found["variant"].map(kernels),
            "MB": found["bytes"] / 1e6,
            "ms": found["median_ms"],
            "GB/s": found["gbps"],
            "TFLOP/s": found["tflops"],
            "fused is": found["factor"],
            "by bytes": found["promised"],
        }
    )
    shown = text(
        table, kernels="{:.0f}", MB="{:.0f}", ms="{:.3f}",
        **{"GB/s": "{:.0f}", "TFLOP/s": "{:.0f}", "fused is": "{:.2f}×", "by bytes": "{:.2f}×"},
    )  # fmt: skip
    return f"2²⁰ rows, width 64, {layers} layers, float16\n{shown}\n{found['source'].iloc[0]}\n{device.mode()}"


def mlp_widths(rows: pd.DataFrame) -> str:
    """By layers and width: the fused kernel's time, and how many times as long the others take; the fastest of all."""
    found = mlp_gains(rows)
    others = [v for v in OTHERS if v in set(found["variant"])]
    lines = []
    for (layers, width), group in found.groupby(["layers", "width"]):
        factors = group.set_index("variant")["factor"]
        fused = group[group["variant"] == "fused"].iloc[0]
        lines.append({"layers": layers, "width": width, "fused ms": fused["median_ms"],
                      **factors.reindex(others), "fastest": factors.idxmin()})  # fmt: skip
    shown = text(pd.DataFrame(lines), **{"fused ms": "{:.3f}"}, **dict.fromkeys(others, "{:.2f}×"))
    return f"times over those of `fused`, {power(1 << 20)} rows, float16\n{shown}\n{found['source'].iloc[0]}"


def library_best(rows: pd.DataFrame, layers: int = 4) -> pd.Series:
    """By width: the time of the best of the library's ways over that of the fused kernel."""
    found = mlp_gains(rows, layers=layers)
    return found[found["variant"].isin(LIBRARIES)].groupby("width")["factor"].min()


def crossover(rows: pd.DataFrame, layers: int = 4) -> float:
    """The first width at which the best of the library's ways beats the fused kernel (NaN: at none)."""
    best = library_best(rows, layers)
    return float(best.index[best < 1].min())


def mlp_most(rows: pd.DataFrame) -> str:
    """What fusing could win at most: the least time of a kernel a layer over that of one kernel; and what it won."""
    gpu, found = peaks(rows) or device.find_gpu(records.DEFAULT_DEVICE), mlp_gains(rows)
    lines = []
    for (layers, width), group in found.groupby(["layers", "width"]):
        by = group.set_index("variant")
        least = {
            v: predict_ms(Cost(int(by.loc[v, "bytes"]), 0, int(by.loc[v, "flops"])), gpu, "fp16")
            for v in ("epilogue", "fused")
        }
        library = by["factor"].reindex(LIBRARIES).min()
        lines.append((layers, width, *least.values(), least["epilogue"] / least["fused"], library))
    columns = ["layers", "width", "least ms, a kernel a layer", "least ms, one kernel", "could win", "won"]
    times = dict.fromkeys(columns[2:4], "{:.3f}") | dict.fromkeys(columns[4:], "{:.2f}×")
    shown = text(pd.DataFrame(lines, columns=columns), **times)
    return f"{shown}\nleast: by the data sheet of the {gpu.name}; won: over the best of the library, measured"


def mlp_rates(rows: pd.DataFrame) -> str:
    """What the fused kernel reaches of both roofs of the data sheet, by width, four layers."""
    gpu, found = peaks(rows), block_rows(rows, variant="fused", layers=4).sort_values("width")
    table = pd.DataFrame(
        {
            "width": found["width"],
            "FLOPs a byte": found["flops"] / found["bytes"],
            "TB/s": found["gbps"] / 1e3,
            "of the memory": found["gbps"] / gpu.bandwidth_gbps if gpu else None,
            "TFLOP/s": found["tflops"],
            "of the tensor cores": found["tflops"] / gpu.tflops["fp16"] if gpu else None,
        }
    )
    shares = dict.fromkeys(("of the memory", "of the tensor cores"), "{:.0%}")
    return text(table, **{"FLOPs a byte": "{:.0f}", "TB/s": "{:.2f}", "TFLOP/s": "{:.0f}"}, **shares)


def mlp_batches(rows: pd.DataFrame) -> str:
    """Width 64, four layers, by the number of rows: the fused kernel's time, and the others' over it."""
    rows = of_one_source(rows)
    here = rows[(rows["width"] == 64) & (rows["layers"] == 4) & (rows["dtype"] == "float16")]
    wide = here.pivot_table(index="batch", columns="variant", values="median_ms", sort=True)
    table = pd.DataFrame({"rows": [power(n) for n in wide.index], "MB in": 128 * wide.index / 1e6})
    table["fused µs"] = 1e3 * wide["fused"].to_numpy()
    for other in ("unfused", "epilogue", "cublas", "cublas-lt"):
        if other in wide:
            table[other] = (wide[other] / wide["fused"]).to_numpy()
    factors = dict.fromkeys(table.columns[3:], "{:.2f}×")
    return text(table, **{"MB in": "{:.0f}", "fused µs": "{:.1f}"}, **factors)


def tensor_cores_or_not(rows: pd.DataFrame) -> str:
    """The plain float32 kernels beside cuBLAS and beside float16, at the same width."""
    rows = of_one_source(rows)
    plain = rows[rows["dtype"] == "float32"].set_index("variant")
    width, layers = (int(plain[key].iloc[0]) for key in ("width", "layers"))
    ms, moved = plain["median_ms"], plain["bytes"]
    half = block_rows(rows, width=width, layers=layers, variant="fused").iloc[0]
    library = f"; cuBLAS takes {ms['cublas']:.3f} ms" if "cublas" in ms else ""
    return (
        f"float32, width {width}, {layers} layers: unfused {ms['unfused']:.3f} ms, fused {ms['fused']:.3f} ms, "
        f"{ms['unfused'] / ms['fused']:.2f}× (bytes promised {moved['unfused'] / moved['fused']:.2f}×){library}\n"
        f"float16 on tensor cores, fused: {half['median_ms']:.3f} ms, {ms['fused'] / half['median_ms']:.0f}× faster "
        f"for half the bytes"
    )


def takeaways_05(rows: pd.DataFrame) -> str:
    """The chapter in five sentences, each with its number."""
    gains = {v: mlp_gain(rows, v) for v in ("unfused", "cublas", "epilogue")}
    here = mlp_gains(rows, width=64, layers=4).set_index("variant")
    best = here[here.index.isin(LIBRARIES)]["factor"]
    rate = block_rows(rows, variant="fused", layers=4).set_index("width")
    four, two = library_best(rows), library_best(rows, layers=2)
    fits = four[four.index <= widest(4)]
    beyond = [f"{f:.2f}× at {w}" for w, f in four.items() if w not in fits.index]
    beyond += [f"{f:.2f}× at {w} (two layers)" for w, f in two.items() if w > widest(2)]
    return numbered(
        f"Width 64, four layers: one kernel is {gains['cublas']:.2f}× as fast as PyTorch's calls and "
        f"{gains['unfused']:.2f}× as ten kernels of ours; bytes promised {here.loc['cublas', 'promised']:.1f}× and "
        f"{here.loc['unfused', 'promised']:.1f}×.",
        f"An epilogue fused into each product is worth {gains['unfused'] / gains['epilogue']:.2f}×; "
        f"keeping the rows on the chip {gains['epilogue']:.2f}× more.",
        f"The best of the library, epilogue and all ({best.idxmin()}), still takes {best.min():.2f}× as long.",
        f"At width 16 the kernel moves {rate.loc[16, 'gbps'] / 1e3:.2f} TB/s, at 128 it does "
        f"{rate.loc[128, 'tflops']:.0f} TFLOP/s: from one roof to the other.",
        f"While all weights fit on the chip, the library's best takes {fits.min():.2f}× to {fits.max():.2f}× as long; "
        f"beyond, {', '.join(beyond)}.",
    )
