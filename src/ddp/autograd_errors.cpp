#include "autograd_errors.h"

#include <atomic>

namespace firkin {
namespace {

std::atomic<void (*)()> autograd_error_translation = nullptr;

}  // namespace

void set_autograd_error_translation(void (*translate)()) {
  autograd_error_translation = translate;
}

void rethrow_to_autograd() {
  if (auto* const translate = autograd_error_translation.load()) translate();
  throw;
}

}  // namespace firkin
