// Small file systems of memory, seen by the process that mounts them and gone with it.
#pragma once

#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

namespace firkin {

// For a child process. Returns whether it worked.
inline bool mount_privately(const std::filesystem::path& at, const char* options, bool read_only) {
  return unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("none", at.c_str(), "tmpfs", read_only ? MS_RDONLY : 0, options) == 0;
}

// May this process mount at all? (root with the right to administer the system)
inline bool can_mount() {
  const pid_t child = fork();
  if (child == 0) _exit(mount_privately("/tmp", "size=64k", false) ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace firkin
