"""gpupool as PyTorch's allocator: the allocator in C++, and the code that finds, compiles and loads it."""
