"""Reports for people and programs: what is installed and works, and what holds the devices' memory."""
