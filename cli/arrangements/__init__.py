"""`baton doctor --arrangements`: what each arrangement of workers yields on this machine, measured side by side.

stream.py sends one request, turn.py runs clients for a while, measure.py starts a mesh for each arrangement, verdict.py
says what the figures mean, and picture.py draws them."""
