"""RMM's resources in C++: a Cython class that holds one of ``gpupool_rmm.hpp``, and what finds or compiles it."""
