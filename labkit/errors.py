"""The one error that labkit raises on purpose."""


class LabError(Exception):
    """What was found, what was expected, what to do next: one line for a person, never a traceback.

    The command line prints it and exits with code 2; IPython shows the line alone.
    """

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]
