// Makes Gloo backends, on the interface that PyTorch would choose, and with sockets that no child process inherits.
#include "backends.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <sstream>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace firkin {
namespace {

// Note [Gloo's sockets]
// Ranks notice that another one has died when the kernel closes its connections. The kernel does not close them as long
// as a child process of the dead rank has them open, and PyTorch 2.13's Gloo lets every child inherit its sockets. So
// sockets are closed on exec and, in a child without exec (a data loader's worker), replaced by /dev/null.

std::set<int> open_descriptors() {
  std::set<int> result;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), &closedir);
  if (!folder) return result;
  while (const dirent* entry = readdir(folder.get())) {
    const int descriptor = std::atoi(entry->d_name);  // "." and "..": 0
    if (descriptor > STDERR_FILENO && descriptor != dirfd(folder.get())) result.insert(descriptor);
  }
  return result;
}

std::mutex own_sockets_mutex;
// The sockets of all groups: inodes by descriptor. A descriptor may have been closed since, and be another file's now.
std::map<int, ino_t> own_sockets;
int null_descriptor = -1;

// 0 if the descriptor is not a socket's.
ino_t inode_of_socket(int descriptor) {
  struct stat status {};
  return fstat(descriptor, &status) == 0 && S_ISSOCK(status.st_mode) ? status.st_ino : 0;
}

void replace_sockets_in_child() {
  for (const auto& [descriptor, inode] : own_sockets) {
    if (inode_of_socket(descriptor) == inode) dup2(null_descriptor, descriptor);
  }
  own_sockets_mutex.unlock();
}

// See Note [Gloo's sockets]. before: the descriptors that were open before Gloo opened its own. Those that other
// threads have opened since are taken for Gloo's.
void keep_from_children(const std::set<int>& before) {
  const std::lock_guard lock(own_sockets_mutex);
  if (null_descriptor < 0) {
    null_descriptor = open("/dev/null", O_RDWR | O_CLOEXEC);
    pthread_atfork([] { own_sockets_mutex.lock(); }, [] { own_sockets_mutex.unlock(); }, replace_sockets_in_child);
  }
  std::erase_if(own_sockets, [](const auto& socket) { return inode_of_socket(socket.first) != socket.second; });
  for (const int descriptor : open_descriptors()) {
    if (before.contains(descriptor)) continue;
    fcntl(descriptor, F_SETFD, FD_CLOEXEC);
    if (const ino_t inode = inode_of_socket(descriptor); inode != 0) own_sockets[descriptor] = inode;
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    const std::string& address, std::chrono::milliseconds timeout) {
  // Gloo (PyTorch 2.13) writes to sockets whose peer has gone. A rank that dies would end the others by SIGPIPE,
  // without a message.
  struct sigaction action = {};
  if (sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
  const std::set<int> before = open_descriptors();
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  // As PyTorch 2.13 chooses: GLOO_SOCKET_IFNAME names one interface or, separated by commas, several, which take turns.
  const char* const interfaces = std::getenv("GLOO_SOCKET_IFNAME");
  std::istringstream names(interfaces == nullptr ? "" : interfaces);
  for (std::string name; std::getline(names, name, ',');) {
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(name));
  }
  if (options->devices.empty()) {
    const bool is_loopback = address == "localhost" || address == "::1" || address.starts_with("127.");
    options->devices.push_back(is_loopback ? c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")
                                           : c10d::ProcessGroupGloo::createDefaultDevice());
  }
  auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
  keep_from_children(before);
  return backend;
}

}  // namespace firkin
