"""What the modules for the frameworks share, and the parts of them that need a framework to be imported."""
