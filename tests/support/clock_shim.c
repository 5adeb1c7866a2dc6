/* Preloaded into an engine, this moves its wall clock by the microseconds in the file $BRAID_CLOCK.
   The file is mapped, so a test changes the clock of a running server by writing eight bytes.
   Monotonic clocks are left alone, as a step of the system's time leaves them. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset_us;

__attribute__((constructor)) static void map_offset(void) {
  const char *path = getenv("BRAID_CLOCK");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *page = mmap(NULL, sizeof *offset_us, PROT_READ, MAP_SHARED, file, 0);
  if (page != MAP_FAILED) offset_us = page;
  close(file);
}

static int64_t now_us(void) {
  struct timespec real;
  syscall(SYS_clock_gettime, CLOCK_REALTIME, &real);
  return (int64_t)real.tv_sec * 1000000 + real.tv_nsec / 1000 + (offset_us ? *offset_us : 0);
}

int clock_gettime(clockid_t clock, struct timespec *out) {
  if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) return syscall(SYS_clock_gettime, clock, out);
  int64_t now = now_us();
  out->tv_sec = now / 1000000;
  out->tv_nsec = now % 1000000 * 1000;
  return 0;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
  (void)zone;
  int64_t now = now_us();
  out->tv_sec = now / 1000000;
  out->tv_usec = now % 1000000;
  return 0;
}

time_t time(time_t *out) {
  time_t now = now_us() / 1000000;
  if (out) *out = now;
  return now;
}
