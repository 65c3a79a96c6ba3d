// Every reader of other people's files, as a function of its content: what fuzzing feeds, and what the corpus is replayed through.
#pragma once

#include <span>
#include <string_view>

namespace firkin::fuzz {

struct Reader {
  std::string_view name;  // also the name of its folder in corpus/
  void (*read)(std::string_view text);
};

std::span<const Reader> readers();
const Reader& find_reader(std::string_view name);

enum class Verdict { kAccepted, kRejected };

// Rejected means: an InputError whose message starts with the file and a line of it. Throws anything else that goes
// wrong: another exception of the reader's, a message without a line, or (std::logic_error) an accepted input that breaks what the reader
// promises.
Verdict run_reader(const Reader& reader, std::string_view text);

}  // namespace firkin::fuzz
