"""What puts gpupool into PyTorch's place: its allocator in C++, and what finds, compiles and loads that."""
