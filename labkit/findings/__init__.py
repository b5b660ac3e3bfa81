"""What the records say, as tables and sentences: no number about speed is typed into a chapter's prose.

One module a chapter; the chapters find them all here.
"""

from labkit.findings.attention import *  # noqa: F403
from labkit.findings.attention_memory import *  # noqa: F403
from labkit.findings.attention_steps import *  # noqa: F403
from labkit.findings.batches import *  # noqa: F403
from labkit.findings.decode import *  # noqa: F403
from labkit.findings.decode_compiled import *  # noqa: F403
from labkit.findings.decode_least import *  # noqa: F403
from labkit.findings.decode_places import *  # noqa: F403
from labkit.findings.decode_products import *  # noqa: F403
from labkit.findings.fallbacks import *  # noqa: F403
from labkit.findings.fusion import *  # noqa: F403
from labkit.findings.ladder import *  # noqa: F403
from labkit.findings.launch import *  # noqa: F403
from labkit.findings.lock import *  # noqa: F403
from labkit.findings.mlp import *  # noqa: F403
from labkit.findings.roofline import *  # noqa: F403
from labkit.findings.selection import *  # noqa: F403
from labkit.tables import largest, numbered, of_one_source, peaks, power, text, value

__all__ = ["largest", "numbered", "of_one_source", "peaks", "power", "text", "value"]
__all__ += [*fusion.__all__, *ladder.__all__, *launch.__all__, *roofline.__all__, *batches.__all__, *selection.__all__]  # noqa: F405
__all__ += mlp.__all__  # noqa: F405
__all__ += [*attention.__all__, *attention_memory.__all__, *attention_steps.__all__]  # noqa: F405
__all__ += [*decode.__all__, *decode_compiled.__all__, *decode_least.__all__, *decode_places.__all__]  # noqa: F405
__all__ += decode_products.__all__  # noqa: F405
__all__ += [*fallbacks.__all__, *lock.__all__]  # noqa: F405
