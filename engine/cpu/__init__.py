"""The runner on CPUs."""
