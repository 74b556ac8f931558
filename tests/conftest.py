"""Settings for all tests.

hypothesis judges no test by its time. It is imported here, before any test runs: some releases of Python 3.11 fail to
compile modules that are imported at the end of a run, and pytest's plugin would import it then."""

from hypothesis import settings

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
