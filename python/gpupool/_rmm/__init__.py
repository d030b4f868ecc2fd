"""RMM's resources in C++: a class in Cython that holds one of ``gpupool_rmm.hpp``, and what finds or compiles it."""
