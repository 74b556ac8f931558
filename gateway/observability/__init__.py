"""What people see of a running mesh: the page `/ui` and what it reads."""
