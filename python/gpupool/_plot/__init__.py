"""Pictures of recordings: what is drawn (`picture`), and drawn as a web page (`page`) or by matplotlib (`figure`)."""
