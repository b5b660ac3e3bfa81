"""A selector that measures: the fastest of several kernels for a shape, found once, remembered on disk; and regret."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from pathlib import Path

import pandas as pd
from filelock import FileLock
from platformdirs import user_cache_path

from labkit import device, timing
from labkit.checks import WrongAnswer
from labkit.doctor import installed
from labkit.errors import LabError
from labkit.experiment import Unavailable
from labkit.fingerprint import fingerprint

FORMAT = 1
PACKAGES = ("numba", "numba-cuda", "torch", "triton")
_warned: set[str] = set()


def folder() -> Path:
    """`$LABKIT_CACHE`, or labkit's folder in the user's cache folder."""
    return Path(os.environ.get("LABKIT_CACHE") or user_cache_path("labkit"))


class Autotuner:
    """Chooses one of several kernels for each shape: measures them the first time, remembers from then on.

    name        what is computed; the name of the cache file
    candidates  name -> build(*arguments) -> launch(); build raises Unavailable where it does not apply
    key         key(*arguments) -> what the choice depends on (default: the arrays' dtypes and shapes)
    cache       the cache file (default: one for each device in `folder()`)
    measure     measure(launches) -> ms, both by name; default: labkit.measure_all, on a GPU alone

    The choices hold for one device, driver, set of packages and for the candidates' code as it is: a change in
    any of them, or a cache file that is damaged or foreign, and it is measured anew.
    Check the candidates first (labkit.Experiment does): a wrong kernel may be a fast one.
    """

    def __init__(
        self,
        name: str,
        candidates: dict[str, Callable],
        key: Callable | None = None,
        cache: str | Path | None = None,
        measure: Callable[[dict[str, Callable]], dict[str, float]] | None = None,
    ):
        if not candidates:
            raise LabError(f"{name}: no candidates to choose from")
        if not device.slug(name):
            raise LabError(f"{name!r} is no name for a tuner: it needs a letter or a digit")
        self.name, self.candidates = name, dict(candidates)
        self.key, self.measure = key or arrays_key, measure or _measured
        self.machine = _machine(supplied=measure is not None)
        self.source = fingerprint(self.candidates)
        where = device.MACHINE.slug or device.MACHINE.mode
        self.path = Path(cache) if cache else folder() / where / f"{device.slug(name)}.json"
        self.cost_s = 0.0  # spent on measuring by this tuner, compilation included
        self.measured = 0  # shapes
        self._choices: dict[str, dict] = {}

    def choose(self, *arguments) -> str:
        """The name of the fastest candidate for these arguments; measures if it is not known yet."""
        key = str(self.key(*arguments))
        if key not in self._choices:
            self._choices = {**self._load(), **self._choices}
        if key not in self._choices:
            self._remember(key, self._contest(key, arguments))
        return self._choices[key]["winner"]

    def launch(self, *arguments) -> Callable:
        """The launch of the fastest candidate for these arguments."""
        winner = self.choose(*arguments)
        try:
            return self.candidates[winner](*arguments)
        except Unavailable:  # it was there when it won
            key = str(self.key(*arguments))
            self._remember(key, self._contest(key, arguments))
            return self.candidates[self._choices[key]["winner"]](*arguments)

    def times(self, *arguments) -> dict[str, float]:
        """ms of each candidate that applies, as measured when the choice was made."""
        self.choose(*arguments)
        return dict(self._choices[str(self.key(*arguments))]["ms"])

    def _contest(self, key: str, arguments: tuple) -> dict:
        """Build and measure what applies. A tie goes to the first in the list."""
        if self.measure is _measured and not device.MACHINE.has_gpu:
            raise LabError(
                f"{self.name}: no choice is cached for {key}, and there is no GPU to measure on "
                f"({device.MACHINE.reason}). Choose among recorded times: Autotuner(..., measure=...)"
            )
        start, launches = time.perf_counter(), {}
        for name, build in self.candidates.items():
            try:
                launches[name] = build(*arguments)
            except Unavailable:
                continue
        if not launches:
            raise LabError(f"{self.name}: none of {', '.join(self.candidates)} applies to {key}")
        found = self.measure(launches)
        cost_s = max(time.perf_counter() - start, 1e-9)
        if not isinstance(found, dict) or set(found) != set(launches) or not all(map(_is_time, found.values())):
            raise LabError(f"{self.name}, {key}: expected ms above 0 for {', '.join(launches)}, measured {found!r}")
        self.cost_s += cost_s
        self.measured += 1
        ms = {name: float(found[name]) for name in launches}
        return {"winner": min(ms, key=ms.get), "ms": ms, "cost_s": cost_s}

    def _load(self, tell: bool = True) -> dict[str, dict]:
        """The choices in the cache file: none if it is not there, is for something else, or is not to be trusted."""
        try:
            return self._trusted(json.loads(self.path.read_text(encoding="utf-8")))
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as e:
            _warn(self.path, f"{self.path} cannot be read ({e.strerror or e}); choices are measured anew")
        except (ValueError, RecursionError) as e:  # bad UTF-8 and bad JSON are ValueErrors too
            if tell:
                print(f"labkit: {self.path} is damaged ({e}); it is measured anew and replaced", file=sys.stderr)
        return {}

    def _trusted(self, found) -> dict[str, dict]:
        """The choices of a file's content, if all of it is as this tuner writes it; ValueError says what is not.

        Another machine, other packages or other kernels are no damage: there is no choice for these yet.
        """
        if not isinstance(found, dict) or not isinstance(found.get("choices"), dict):
            raise ValueError("no choices in it")
        mine = {"format": FORMAT, "tuner": self.name, "machine": self.machine, "source": self.source}
        if any(found.get(part) != value for part, value in mine.items()):
            return {}
        for key, choice in found["choices"].items():
            if not isinstance(choice, dict) or set(choice) != {"winner", "ms", "cost_s"}:
                raise ValueError(f"no winner or times for {key}")
            ms, winner = choice["ms"], choice["winner"]
            if not isinstance(ms, dict) or not ms or not set(ms) <= set(self.candidates):
                raise ValueError(f"unknown candidates for {key}")
            if not all(map(_is_time, ms.values())) or not _is_time(choice["cost_s"]):
                raise ValueError(f"a time for {key} that no clock yields")
            if not isinstance(winner, str) or winner not in ms or ms[winner] > min(ms.values()):
                raise ValueError(f"the winner for {key} did not win")
        return found["choices"]

    def _remember(self, key: str, choice: dict) -> None:
        """Add a choice to those in the file, which others may have written meanwhile, and replace it in one step."""
        self._choices[key] = choice
        content = {"format": FORMAT, "tuner": self.name, "machine": self.machine, "source": self.source}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(self.path.with_suffix(".lock"), timeout=10):
                text = json.dumps({**content, "choices": {**self._load(tell=False), **self._choices}}, indent=1)
                new = self.path.with_suffix(".new")
                new.write_text(text + "\n", encoding="utf-8")
                new.replace(self.path)
        except (OSError, NotImplementedError) as e:
            why = getattr(e, "strerror", None) or e
            _warn(self.path, f"choices are not cached, {self.path} cannot be written ({why}); set LABKIT_CACHE")


def arrays_key(*arguments) -> str:
    """dtype and shape of each array: `float32[16, 64] · float32[64, 8]`; other arguments as they print."""
    return " · ".join(
        f"{a.dtype}[{', '.join(map(str, a.shape))}]" if hasattr(a, "shape") and hasattr(a, "dtype") else repr(a)
        for a in arguments
    )


def _measured(launches: dict[str, Callable]) -> dict[str, float]:
    """Median ms of each launch, with fewer samples than an experiment takes."""
    return {name: t.median_ms for name, t in timing.measure_all(launches, warmup=5, rep=20).items()}


def _machine(supplied: bool) -> dict[str, object]:
    """What a time depends on besides the kernels. Supplied times are never taken for measured ones."""
    machine = device.MACHINE
    toolkit = ".".join(map(str, device.toolkit_version())) if machine.has_gpu else ""
    return {
        "device": machine.name or machine.mode,
        "sms": machine.sms,
        "driver": (device.gpu_state()["driver"] if machine.has_gpu else None) or "unknown",
        "toolkit": toolkit or "none",
        "packages": {p: installed(p) for p in PACKAGES if installed(p)},
        "times": "supplied" if supplied else "measured",
    }


def _is_time(value) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < value < 1e9  # NaN is not


def _warn(path: Path, text: str) -> None:
    """Once a folder: a chapter has many tuners."""
    if str(path.parent) not in _warned:
        _warned.add(str(path.parent))
        print(f"labkit: {text}", file=sys.stderr)


# regret: what a choice costs against the best one


def regret(choice_ms: float, best_ms: float) -> float:
    """How much longer the choice takes than the best: 0 is the best, 1 is twice its time."""
    if not _is_time(choice_ms) or not _is_time(best_ms):
        raise LabError(f"regret of {choice_ms!r} against {best_ms!r} ms: expected times above 0")
    return float(choice_ms / best_ms - 1)


@dataclass(frozen=True)
class Regret:
    """How well a rule chooses: a row a shape, with `choice`, `choice_ms`, `best`, `best_ms` and `regret`."""

    table: pd.DataFrame

    @property
    def mean(self) -> float:
        """Over all shapes alike."""
        return float(self.table["regret"].mean())

    @property
    def worst(self) -> float:
        """Of the one shape for which the rule chooses worst."""
        return float(self.table["regret"].max())

    def __str__(self):
        best = int((self.table["regret"] == 0).sum())
        return (
            f"best for {best} of {len(self.table)} shapes; regret {self.mean:.1%} on average, {self.worst:.1%} at worst"
        )


def score(rule: Callable[..., str], rows: pd.DataFrame, shape: tuple[str, ...] = ("m", "n", "k", "batch")) -> Regret:
    """Ask rule(m, n, k, batch) for a variant for every shape in a record's rows; see what its choices would cost.

    Raises WrongAnswer for a variant that nobody knows or that does not apply to the shape.
    """
    missing = [c for c in (*shape, "variant", "median_ms") if c not in rows.columns]
    if missing or rows.empty:
        raise LabError(f"score: {f'no column {missing[0]}' if missing else 'no rows'}; it takes the rows of a record")
    if not rows["median_ms"].map(_is_time).all() or rows.duplicated([*shape, "variant"]).any():
        raise LabError("score: a time that is not above 0 ms, or two rows for one variant and shape")
    if rows[list(shape)].isna().any(axis=None):
        raise LabError(f"score: a row without one of {', '.join(shape)}")
    known, found = list(dict.fromkeys(rows["variant"])), []
    for values, group in rows.groupby(list(shape), sort=False):
        at = dict(zip(shape, (v.item() if hasattr(v, "item") else v for v in values), strict=True))
        ms = dict(zip(group["variant"], group["median_ms"], strict=True))
        choice, best = _ask(rule, at, ms, known), min(ms, key=ms.get)
        costs = {"choice": choice, "choice_ms": ms[choice], "best": best, "best_ms": ms[best]}
        found.append({**at, **costs, "regret": regret(ms[choice], ms[best])})
    return Regret(pd.DataFrame(found))


def _ask(rule: Callable[..., str], at: dict, ms: dict[str, float], known: list[str]) -> str:
    """The rule's choice, if it is one of those that apply."""
    asked = f"the rule, asked for {', '.join(f'{k}={v}' for k, v in at.items())},"
    try:
        choice = rule(*at.values())
    except Exception as e:  # a learner's rule may fail in any way
        raise WrongAnswer(f"{asked} raised {type(e).__name__}: {e}") from e
    if not isinstance(choice, str) or choice not in known:
        raise WrongAnswer(f"{asked} answered {choice!r}; there are: {', '.join(known)}")
    if choice not in ms:
        raise WrongAnswer(f"{asked} answered {choice!r}, which does not apply there; these do: {', '.join(ms)}")
    return choice
