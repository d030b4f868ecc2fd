// An ABI double of any NVIDIA library whose calls need a handle. The names come from the compiler's command line; one
// that is left out is a symbol that an old version lacks. FAKE_CREATE_STATUS is what its create answers.

#include <stdlib.h>

typedef struct { void *stream; } Handle;

#ifdef NEEDS
// Refers to another library, so that this one cannot be loaded before it.
extern int NEEDS(int kind, int *value);
int uses(void) { return NEEDS(0, 0); }
#endif

#ifdef CREATE
int CREATE(void **handle) {
  const char *status = getenv("FAKE_CREATE_STATUS");
  if (status) return atoi(status);
  *handle = calloc(1, sizeof(Handle));
  return 0;
}
#endif
#ifdef DESTROY
int DESTROY(void *handle) { free(handle); return 0; }
#endif
#ifdef SET_STREAM
int SET_STREAM(void *handle, void *stream) { ((Handle *)handle)->stream = stream; return 0; }
#endif
#ifdef GET_STREAM
int GET_STREAM(void *handle, void **stream) { *stream = ((Handle *)handle)->stream; return 0; }
#endif
#ifdef PROPERTY
int PROPERTY(int kind, int *value) { *value = (const int[]){VERSION}[kind]; return 0; }
#endif
#ifdef STATUS_NAME
const char *STATUS_NAME(int status) { return status == 1 ? "DOUBLE_NOT_INITIALIZED" : status == 2 ? "DOUBLE_ALLOC_FAILED" : "DOUBLE_OTHER"; }
#endif
