"""The hand-off as decode sees it: sessions with prefill workers, landings, the check of spans, and quarantine."""
