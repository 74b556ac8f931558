"""One step: its plan, its logits, its samples, its reports."""
