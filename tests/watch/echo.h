// What a program tells the driver of echo.c, and what that has noted.

#include <stddef.h>

typedef struct {
  // What was called last, with what, and how many calls there were.
  const char *symbol;
  size_t arguments[8];
  int calls;
  // What is answered.
  int status;
  // What an allocation that succeeds writes to the place that its first argument is; 0 writes nothing.
  size_t gives;
  // Called before a call returns.
  void (*meanwhile)(void);
  // The calling thread's device, none if it is negative, and context, and the device's memory.
  int device;
  void *context;
  size_t free, total;
  // The version of CUDA that the driver came with; 0 is newer than all.
  int version;
  // The stream that is captured, if any.
  size_t captured;
} Echo;

extern Echo echo;
