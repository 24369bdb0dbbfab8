/* Makes reads of given ranges of given files fail with EIO. Preloaded into the server by the tests.
 *
 * READ_ERRORS_CONTROL names a file with one rule per line: a part of the path, the first byte, the byte after the last. The file
 * is read before each read, so a test turns errors on by writing it and off by removing it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

typedef ssize_t (*pread_function)(int, void *, size_t, off64_t);

static pread_function real_pread(void) {
  static pread_function found;
  if (!found) found = (pread_function)dlsym(RTLD_NEXT, "pread64");
  return found;
}

static int fails(int descriptor, size_t count, off64_t offset) {
  const char *control = getenv("READ_ERRORS_CONTROL");
  if (!control) return 0;
  int rules = open(control, O_RDONLY | O_CLOEXEC);
  if (rules < 0) return 0;
  char text[4096];
  ssize_t length = read(rules, text, sizeof text - 1);
  close(rules);
  if (length <= 0) return 0;
  text[length] = 0;
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t path_length = readlink(link, path, sizeof path - 1);
  if (path_length <= 0) return 0;
  path[path_length] = 0;
  for (char *save = 0, *line = strtok_r(text, "\n", &save); line; line = strtok_r(0, "\n", &save)) {
    char part[512];
    long long start, end;
    if (sscanf(line, "%511s %lld %lld", part, &start, &end) != 3) continue;
    if (strstr(path, part) && offset < end && offset + (long long)count > start) return 1;
  }
  return 0;
}

ssize_t pread64(int descriptor, void *buffer, size_t count, off64_t offset) {
  if (fails(descriptor, count, offset)) {
    errno = EIO;
    return -1;
  }
  return real_pread()(descriptor, buffer, count, offset);
}

ssize_t pread(int descriptor, void *buffer, size_t count, off_t offset) {
  return pread64(descriptor, buffer, count, offset);
}
