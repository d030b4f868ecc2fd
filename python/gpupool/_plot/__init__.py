"""Pictures of trace files: what is drawn (`picture`), and drawn as a web page (`page`) or by matplotlib (`figure`)."""
