// What newer compilers take from newer systems than gpupool's wheels are for, defined by what those systems have: glibc
// 2.28 and the C++ library of GCC 8. Linked into the libraries for PyTorch's allocator that come with gpupool.

#include <sstream>
#include <stdexcept>
#include <string>

#define HIDDEN __attribute__((visibility("hidden")))

// glibc 2.32: that there is one thread alone, by which counts may be kept without atomics. There may be many.
extern "C" HIDDEN __attribute__((weak)) char __libc_single_threaded;
char __libc_single_threaded = 0;

// GCC 11: the text of a stream of C++20, as that of C++11.
std::string text(const std::stringbuf *) asm("_ZNKSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv");
HIDDEN std::string text_20(const std::stringbuf *) asm("_ZNKRSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv");
std::string text_20(const std::stringbuf *buffer) { return text(buffer); }

// GCC 11: what an exception's pointer does when it goes, which the destructor of before does too.
void end(void *) asm("_ZNSt15__exception_ptr13exception_ptrD1Ev");
HIDDEN void release(void *) asm("_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");
void release(void *pointer) { end(pointer); }

// GCC 11: an array of impossible size.
HIDDEN void refuse() asm("_ZSt28__throw_bad_array_new_lengthv");
void refuse() { throw std::bad_alloc(); }
