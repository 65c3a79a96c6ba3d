// One libFuzzer program per reader; FIRKIN_FUZZ_READER names it. Anything but an InputError that names its place ends the program.
#include <cstddef>
#include <cstdint>

#include "readers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const firkin::fuzz::Reader& reader = firkin::fuzz::find_reader(FIRKIN_FUZZ_READER);
  firkin::fuzz::run_reader(reader, {reinterpret_cast<const char*>(data), size});
  return 0;
}
