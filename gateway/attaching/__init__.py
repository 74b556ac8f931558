"""Workers attach, report, drain and leave; the gateway that joins them with the sequencer."""
