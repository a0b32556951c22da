// common/mask_at_start.cpp - the cores that this process was given. OpenMP's library binds
// the first thread to one core before main(), if variables such as OMP_PROC_BIND say so.
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

extern "C" {
cpu_set_t ddp_mask_at_start[64];
}

namespace {

void keep_mask() {
  // No function of the C library: sanitizers replace those, and have not begun yet.
  syscall(SYS_sched_getaffinity, 0, sizeof(ddp_mask_at_start), ddp_mask_at_start);
}
/// Called before the constructors of all libraries.
[[gnu::section(".preinit_array"), gnu::used]] void (*const before_libraries)() = keep_mask;

}  // namespace
