"""The course's figures: each a function from records to a figure whose title is what it found.

One module a chapter; the chapters find them all here.
"""

from labkit.figures.attention import *  # noqa: F403
from labkit.figures.decode import *  # noqa: F403
from labkit.figures.fusion import *  # noqa: F403
from labkit.figures.launch import *  # noqa: F403
from labkit.figures.lock import *  # noqa: F403
from labkit.figures.mlp import *  # noqa: F403
from labkit.figures.registry import FIGURES, draw_all, recorded
from labkit.figures.roofline import *  # noqa: F403
from labkit.figures.selection import *  # noqa: F403

__all__ = ["FIGURES", "draw_all", "recorded", *fusion.__all__, *launch.__all__, *roofline.__all__, *selection.__all__]  # noqa: F405
__all__ += mlp.__all__  # noqa: F405
__all__ += attention.__all__  # noqa: F405
__all__ += decode.__all__  # noqa: F405
__all__ += lock.__all__  # noqa: F405
