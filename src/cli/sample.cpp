// firkin sample: text from a model that `firkin train` has trained.
#include "command.h"
#include "model/transformer.h"
#include "train/checkpoint.h"

namespace firkin::cli {
namespace {

struct SampleFlags {
  std::string from = "firkin-out/train";
  std::string prompt = "The ";
  GenerateOptions generate;
  bool json = false;
};

// A checkpoint, or the newest of a run's folder.
NewestCheckpoint find_checkpoint(const std::filesystem::path& from) {
  if (!std::filesystem::is_directory(from)) return {from, read_checkpoint(from)};
  std::vector<std::string> problems;
  for (const std::filesystem::path& folder : {from / kCheckpointFolder, from}) {
    if (auto newest = read_newest_checkpoint(folder, problems)) {
      for (const std::string& problem : problems) fmt::print(stderr, "firkin: {}\n", problem);
      return *std::move(newest);
    }
  }
  throw InputError(problems.empty() ? fmt::format("{}: contains no checkpoint; expected the --out of firkin train", from.string())
                                    : problems[0]);
}

int run_sample(const SampleFlags& flags) {
  if (flags.prompt.empty()) throw InputError("--prompt: empty; expected at least one character");
  const NewestCheckpoint newest = find_checkpoint(flags.from);
  const CheckpointHead& head = newest.checkpoint.head;
  if (!head.about.is_object() || !head.about.contains("model")) {
    throw InputError(fmt::format("{}: does not name its model; expected a checkpoint of firkin train", newest.file.string()));
  }
  if (!head.about.value("text", false)) {
    throw InputError(fmt::format("{}: trained on another program's tokens; expected a byte-level model", newest.file.string()));
  }
  const TransformerConfig config = parse_model_json(head.about["model"].dump(), newest.file.string());
  TransformerLM model(config, at::TensorOptions(head.about.value("dtype", "fp32") == "bf16" ? at::kBFloat16 : at::kFloat));
  load_parameters(newest.checkpoint, *model);
  fmt::print(stderr, "firkin: {}, {} steps done\n", newest.file.string(), head.step);

  GenerateOptions options = flags.generate;
  // Positions beyond those that it was trained on mean nothing to it.
  options.context = std::min(config.context_length, head.about.value("sequence", config.context_length));
  std::vector<int64_t> prompt;
  for (const char c : flags.prompt) prompt.push_back(static_cast<unsigned char>(c));
  std::string text;
  if (!flags.json) fmt::print("{}", flags.prompt);
  generate(model, prompt, options, [&](int64_t token) {
    text += static_cast<char>(token < 256 ? token : '?');
    if (flags.json) return;
    std::fputc(text.back(), stdout);  // every byte on its own: a character of several may not be whole yet
    std::fflush(stdout);
  });
  if (flags.json) {
    print_json({{"checkpoint", newest.file.string()}, {"step", head.step}, {"prompt", flags.prompt}, {"text", text}});
  } else {
    fmt::print("\n");
  }
  return 0;
}

}  // namespace

Run declare_sample(CLI::App& app) {
  auto flags = std::make_shared<SampleFlags>();
  app.footer(
      "Prints the prompt and continues it as the model would. The model must have been\n"
      "trained on text, byte by byte.\n\n"
      "  firkin sample                                from firkin-out/train\n"
      "  firkin sample book --prompt \"It was\" --count 500 --temperature 0.7\n"
      "  firkin sample book/checkpoints/step-00000200.ckpt --temperature 0\n");
  add_value(app, "from", flags->from, "--out of firkin train, or a checkpoint");
  add_value(app, "--prompt", flags->prompt, "the beginning of the text");
  add_value(app, "--count", flags->generate.count, "bytes to generate")->check(CLI::Range(1, 1000000));
  add_value(app, "--temperature", flags->generate.temperature, "below 1 favours likely bytes; 0 takes the likeliest")
      ->check(CLI::Range(0.0, 100.0));
  add_value(app, "--top-k", flags->generate.top_k, "choose among the k likeliest; 0: among all")->check(CLI::Range(0, 1000000));
  add_value(app, "--seed", flags->generate.seed, "random seed");
  add_json_flag(app, flags->json);
  return [flags] { return run_sample(*flags); };
}

}  // namespace firkin::cli
