"""The interface between front doors and sequencing."""
