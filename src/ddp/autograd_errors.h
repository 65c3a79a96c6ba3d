// What leaves a hook or a final callback of autograd, and with it backward().
#pragma once

namespace firkin {

// Called where an error is about to leave, within its catch block: may throw another one instead. Python needs this, which would see every
// error as a RuntimeError. Without: errors leave as they are. Set it before any module is wrapped.
void set_autograd_error_translation(void (*translate)());

// Within a catch block: rethrows what is caught, translated.
[[noreturn]] void rethrow_to_autograd();

template <typename Body>
void translated(Body body) {
  try {
    body();
  } catch (...) {
    rethrow_to_autograd();
  }
}

}  // namespace firkin
