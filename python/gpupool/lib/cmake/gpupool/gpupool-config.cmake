# find_package(gpupool) makes the targets
#   gpupool::gpupool   the C library with its headers, gpupool.h and gpupool.hpp
#   gpupool::headers   the headers alone, for what takes the table from Python
# This folder is gpupool_DIR; it lies beside what `python -c "import gpupool; print(gpupool.get_library())"` prints.
get_filename_component(_gpupool_root "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET gpupool::headers)
  add_library(gpupool::headers INTERFACE IMPORTED)
  set_target_properties(gpupool::headers PROPERTIES
    INTERFACE_COMPILE_DEFINITIONS GPUPOOL_NO_LIBRARY
    INTERFACE_INCLUDE_DIRECTORIES "${_gpupool_root}/include")
endif()

if(NOT TARGET gpupool::gpupool AND EXISTS "${_gpupool_root}/lib/libgpupool.so.0")
  add_library(gpupool::gpupool SHARED IMPORTED)
  set_target_properties(gpupool::gpupool PROPERTIES
    IMPORTED_LOCATION "${_gpupool_root}/lib/libgpupool.so.0"
    IMPORTED_SONAME "libgpupool.so.0"
    INTERFACE_INCLUDE_DIRECTORIES "${_gpupool_root}/include")
endif()

if(NOT TARGET gpupool::gpupool AND NOT gpupool_FIND_COMPONENTS STREQUAL "headers")
  set(gpupool_FOUND FALSE)
  set(gpupool_NOT_FOUND_MESSAGE
    "${_gpupool_root}/lib/libgpupool.so.0 is missing: install gpupool's wheel, run `make library` in a clone, or ask for COMPONENTS headers alone")
endif()
unset(_gpupool_root)
