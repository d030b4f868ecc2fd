"""Code that is compiled at first use, and kept for the next time."""
