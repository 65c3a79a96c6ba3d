// How much memory is left on this machine.
#pragma once

#include <cstdint>

namespace firkin {

// Bytes that processes here can still allocate without swapping: the least of what the kernel says is available and what the control
// group's limit (version 2; containers) leaves. Linux; elsewhere, and when the kernel does not say, the largest int64_t.
int64_t available_memory_bytes();

}  // namespace firkin
