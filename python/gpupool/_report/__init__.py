"""What gpupool tells people about itself: what is installed and works, and what holds the devices' memory."""
