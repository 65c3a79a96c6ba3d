// The flags of the commands that measure, the checks of these, and --help. measure() then runs the commands.
#include "firkin/comm/rank_info.h"
#include "firkin/plan/bucket_plan.h"
#include "flags.h"

namespace firkin::cli {
namespace {

// A time that can be waited for or spent on measuring.
template <class Seconds>
CLI::Option* add_budget(CLI::App& app, const std::string& name, Seconds& seconds, const std::string& help) {
  return add_time(app, name, seconds, help)->check([name](const std::string& text) -> std::string {
    const double given = parse_seconds(text, name);
    return given >= 0.1 && given <= 1e6 ? "" : fmt::format("{}: expected 100ms to 11 days", text);
  });
}

void add_run_flags(CLI::App& app, RunFlags& run, const std::string& command) {
  add_output_flags(app, run.common, command);
  add_value(app, "--seed", run.common.seed, "random seed", "Measuring");
  RankFlags& flags = run.ranks;
  app.add_option("--ranks", flags.ranks, "ranks to start on this machine, without a launcher\n(default: 2, or 1 with --world)")
      ->check(number_from(1, kMostLocalRanks));
  app.add_option("--link", flags.link,
                 "model this link: 1gbit, or 200mbit,1ms (latency), or\nan allreduce.csv; collectives take as long (a\nreduce-scatter or "
                 "all-gather half an all-reduce).\nOn a GPU, c.csv,sms=16 also holds 16 multiprocessors");
  app.add_option("--world", flags.world,
                 "ranks that the link is modelled for, of which this\nmachine runs one, or --ranks (default: --ranks)");
  const char* const group = "Ranks";
  add_budget(app, "--timeout", flags.timeout_s, "limit for a collective to complete: 90s, 5m")->group(group);
  add_value(app, "--device", flags.device, "cpu, or cuda with one GPU of this machine per rank;\nauto: cuda if there is a GPU", group)
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  add_value(app, "--backend", flags.backend,
            "c10d backend for gradients; auto: nccl if each rank\nhas a GPU of its own and --link is not given, else\ngloo", group)
      ->check(CLI::IsMember({"auto", "gloo", "nccl"}));
  add_value(app, "--threads", flags.threads, "compute threads per rank; 0: OMP_NUM_THREADS, or an\nequal share", group)
      ->check(number_from(0, 1024));
}

void add_training_flags(CLI::App& app, JobFlags& flags) {
  app.add_option("--data", flags.data, "text file to train on, byte by byte (default: a text\nthat comes with Firkin)");
  const auto why_too_much = [](const std::string& text) -> std::string {
    constexpr int64_t kMost = int64_t{1} << 50;  // 1 PiB, so that the sum over the ranks of a machine fits into 63 bits
    return parse_size(text, "--memory-limit") <= kMost ? "" : fmt::format("{}: expected at most 1024TiB", text);
  };
  add_size(app, "--memory-limit", flags.memory_limit_bytes, "per rank; larger runs are refused or skipped\n(default: available memory)")
      ->check(why_too_much)
      ->group("Measuring");
}

// A size of what is trained: sequences, tokens.
auto shape_range() {
  return number_from(int64_t{1}, int64_t{1} << 20);
}

void add_job_flags(CLI::App& app, JobFlags& flags) {
  add_model_flags(app, flags.model);
  add_value(app, "--batch", flags.batch_size, "sequences per rank and step")->check(shape_range());
  add_value(app, "--sequence", flags.sequence_length, "tokens per sequence")->check(shape_range());
  add_training_flags(app, flags);
}

// The flags that a replay excludes must be there before.
void add_replay_flags(CLI::App& app, JobFlags& flags) {
  const char* const group = "Replay";
  CLI::Option* replay = app.add_option("--replay", flags.replay,
                                       "replay a tensors.csv instead of a model: gradients\nof its sizes at its times; computation sleeps")
                            ->check(CLI::ExistingFile)
                            ->group(group);
  add_value(app, "--scale-bytes", flags.scale_bytes, "multiply the replay's bytes", group)->needs("--replay");
  add_value(app, "--scale-time", flags.scale_time, "multiply the replay's times", group)->needs("--replay");
  std::vector<std::string> replaced = model_flag_names();
  replaced.insert(replaced.end(), {"--batch", "--sequence", "--data"});
  for (const std::string& name : replaced) replay->excludes(app.get_option(name));
}

constexpr const char* kStrategiesInHelp =
    "Strategies: none does not communicate. naive sends one tensor after another,\n"
    "after backward; flat sends all in one call after backward; overlap sends each\n"
    "tensor when its gradient is ready; bucketed sends each bucket when it is full.\n"
    "ordered sends first what the next forward needs first, and overlaps it as well;\n"
    "sharded lets each rank sum and step its part of every bucket.\n"
    "torch is PyTorch's own engine (c10d::Reducer) under the same caps.\n\n";

// How often and how long each setting of steps is measured.
template <class Blocks>
void add_block_flags(CLI::App& app, Blocks& blocks, StepCounts& steps, const char* blocks_in_help) {
  const char* const group = "Measuring";
  const auto some = number_from(1, 100000);
  add_value(app, "--blocks", blocks, blocks_in_help, group)->check(number_from(4, 100000));
  add_value(app, "--warmup", steps.warmup_steps, "untimed steps after each change of setting", group)->check(some);
  add_value(app, "--steps-per-block", steps.timed_steps, "timed steps per block and setting", group)->check(some);
}

void add_strategy_flags(CLI::App& app, std::vector<std::string>& strategies, std::vector<int64_t>& caps) {
  std::vector<std::string> names;
  for (const Strategy& strategy : kStrategies) {
    if (strategy.grouping != Grouping::kPlan) names.emplace_back(strategy.name);
  }
  add_value(app, "--strategies", strategies, "how to synchronise gradients")->delimiter(',')->check(CLI::IsMember(names));
  add_sizes(app, "--cap", caps, "bucket caps for bucketed and torch: 1MiB,25MiB");
}

// A command that measures over sizes. Like those below, it checks flags as soon as they are parsed, before anything is
// loaded or read.
template <class Flags>
Run declare_over_sizes(CLI::App& app, const std::shared_ptr<Flags>& flags, const std::string& command) {
  add_run_flags(app, *flags, command);
  SizeFlags& sizes = flags->sizes;
  add_bytes(app, "-b,--begin", sizes.begin, "smallest size, bytes; 1K, 1M, 1G: powers of 1024");
  add_bytes(app, "-e,--end", sizes.end, "largest size");
  add_value(app, "-f,--factor", sizes.factor, "ratio of successive sizes")->check(number_from(2, 1 << 20));
  add_budget(app, "--time", sizes.seconds, "budget for the whole measurement");
  return [flags, &sizes] {
    if (sizes.begin % kFloatBytes != 0)
      throw InputError(fmt::format("--begin {}: expected a multiple of {} bytes", sizes.begin, kFloatBytes));
    if (sizes.begin > sizes.end)
      throw InputError(fmt::format("--begin {}: expected at most --end {}", format_bytes(sizes.begin), format_bytes(sizes.end)));
    return measure(flags.get());
  };
}

// Throws InputError for a value that is given twice: it would run twice, under one name.
template <class T>
void check_distinct(const char* flag, const std::vector<T>& values) {
  for (auto value = values.begin(); value != values.end(); ++value) {
    if (std::find(values.begin(), value, *value) != value)
      throw InputError(fmt::format("{}: {} is given twice; expected each value once", flag, *value));
  }
}

void check_model(const JobFlags& flags) {
  if (!flags.replay.empty()) return;
  const int64_t longest = model_config(flags.model).context_length;
  if (flags.sequence_length > longest) {
    throw InputError(fmt::format("--sequence {}: expected at most the model's context_length {}", flags.sequence_length, longest));
  }
}

}  // namespace

int ranks_to_start(const RankFlags& flags) {
  return flags.ranks.value_or(flags.world ? 1 : 2);
}

std::vector<JobFlags> jobs_of(const StepFlags& flags) {
  if (!flags.job.replay.empty()) return {flags.job};
  std::vector<JobFlags> jobs;
  for (const std::string& model : flags.models) {
    for (const int64_t batch : flags.batch_sizes) {
      for (const int64_t sequence : flags.sequence_lengths) {
        jobs.push_back(flags.job);
        jobs.back().model.model = model;
        jobs.back().batch_size = batch;
        jobs.back().sequence_length = sequence;
      }
    }
  }
  return jobs;
}

Run declare_tune(CLI::App& app) {
  auto flags = std::make_shared<TuneFlags>();
  app.footer(
      "Profiles the backward pass, times the all-reduce, predicts the step time for\n"
      "every bucket size, and races the best few caps until one is clear. Further\n"
      "blocks of steps compare the winner with PyTorch's default (its own engine,\n"
      "1 MiB and then 25 MiB), with none (no communication) and with ordered (which\n"
      "also overlaps the next forward pass). --compare also measures naive, flat,\n"
      "overlap (firkin bench step --help) and seven caps.\n\n"
      "predicted, measured: seconds per step. error: predicted / measured - 1.\n"
      "exposed: the step minus the step without communication. after bw: from the end\n"
      "of backward to the last gradient.\n\n"
      "  firkin tune --ranks 2                     the demo model on this machine\n"
      "  firkin tune --ranks 2 --link 1gbit        over a modelled link\n"
      "  firkin tune --link c.csv --world 128      as one rank of 128, by a cluster's\n"
      "                                            all-reduce times (firkin import)\n"
      "  firkin tune --ranks 2 --data book.txt     on your own text\n"
      "  torchrun --nproc-per-node 2 --no-python firkin tune\n\n"
      "--rule at-most: a tensor that would exceed the cap starts a new bucket;\n"
      "close-when-full: a bucket closes once it reaches the cap, as PyTorch's do.\n");
  add_run_flags(app, *flags, "tune");
  add_job_flags(app, flags->job);
  add_replay_flags(app, flags->job);
  add_rule_flags(app, flags->rule);
  app.add_flag("--sharded", flags->sharded, "consider the strategy sharded too: time and memory")->group("Measuring");
  app.add_flag("--compare", flags->compare, "also measure naive, flat, overlap and more caps")->group("Measuring");
  add_sizes(app, "--cap", flags->caps, "also race these: 1MiB,25MiB; with --compare, the\ncaps to compare")->group("Buckets");
  const char* const measuring = "Measuring";
  add_block_flags(
      app, flags->blocks, flags->steps,
      "blocks that measure the gain; each runs all settings\n(default: until the gain is settled, within --time;\nwithout a limit "
      "of time 20)");
  add_budget(app, "--time", flags->seconds, "budget for the whole run; slow steps run fewer times\n(default: 2m; with --compare no limit)")
      ->group(measuring);
  add_value(app, "--profile-steps", flags->profile_steps, "backward passes to profile", measuring)->check(number_from(4, 100000));
  add_budget(app, "--allreduce-time", flags->allreduce_seconds, "budget for the all-reduce table: 10s")->group(measuring);
  return [flags] {
    check_model(flags->job);
    return measure(flags.get());
  };
}

Run declare_bench_step(CLI::App& app) {
  auto flags = std::make_shared<StepFlags>();
  app.footer(std::string(kStrategiesInHelp) +
             "Takes about blocks x settings x (warm-up + timed) steps per configuration; says\n"
             "how long that is before it begins, and after the first block how long is left.\n"
             "Without flags it measures one configuration.\n\n"
             "step: median over blocks of the slowest rank's step. spread: slowest minus\n"
             "fastest rank. after bw, share: from the end of backward to the last gradient.\n"
             "ovlp: share of the communication hidden by computation. exposed: the step less\n"
             "the step without communication, paired. memory: the most that tensors hold in a\n"
             "step. x torch: ratio to c10d::Reducer under the same cap, paired, 95 %\n"
             "interval.\n\n"
             "  firkin bench step --ranks 2 --batch 4 --sequence 128 --cap 1MiB,4MiB\n"
             "  firkin bench step --batch 2,4 --sequence 128,256,512   six configurations\n"
             "  firkin bench step --ranks 2 --model small,medium --resume\n"
             "  firkin bench step --config matrix.toml   with [bench.step] and batch = [2, 4]\n");
  add_run_flags(app, *flags, "bench-step");
  add_value(app, "--model", flags->models, "named models (firkin buckets lists them) or .json\nfiles")->delimiter(',')->type_name("MODEL");
  add_value(app, "--batch", flags->batch_sizes, "sequences per rank and step")->delimiter(',')->check(shape_range());
  add_value(app, "--sequence", flags->sequence_lengths, "tokens per sequence")->delimiter(',')->check(shape_range());
  add_strategy_flags(app, flags->strategies, flags->caps);
  add_model_detail_flags(app, flags->job.model);
  add_training_flags(app, flags->job);
  add_replay_flags(app, flags->job);
  app.add_flag("--resume", flags->resume, "continue an interrupted run in --out");
  add_rule_flags(app, flags->rule);
  add_block_flags(app, flags->steps.blocks, flags->steps, "blocks; each runs all settings once");
  return [flags] {
    check_distinct("--model", flags->models);
    check_distinct("--batch", flags->batch_sizes);
    check_distinct("--sequence", flags->sequence_lengths);
    check_distinct("--strategies", flags->strategies);
    for (const JobFlags& job : jobs_of(*flags)) check_model(job);
    return measure(flags.get());
  };
}

Run declare_bench_allreduce(CLI::App& app) {
  auto flags = std::make_shared<AllReduceFlags>();
  app.footer(
      "Takes --time, and a little more. Sizes in bytes, bandwidths in GB/s.\n\n"
      "median, p99, cv: single all-reduces on the slowest rank; short calls are timed\n"
      "several in a row. gap: time per additional call when 4 are queued (the model's\n"
      "g; 2 above 64 MiB, none above 128 MiB). algbw = size / median; busbw = algbw 2\n"
      "(n - 1) / n, as nccl-tests prints it. #wrong: elements that differ from the\n"
      "exact sum; exit code 1 if there are any.\n\n"
      "  firkin bench allreduce --ranks 2            4 B to 64 MiB\n"
      "  firkin bench allreduce --ranks 6 -b 1M -e 1G -f 10 --time 2m\n");
  return declare_over_sizes(app, flags, "bench-allreduce");
}

Run declare_bench_chunks(CLI::App& app) {
  auto flags = std::make_shared<ChunksFlags>();
  app.footer(
      "All-reduces the same data in chunks of one size after another, all chunks in\n"
      "flight together (at most 1024 calls at a time). all: the slowest rank's time\n"
      "for all chunks. per call: g(x), the time of one more queued call of that size.\n"
      "Repeats rounds over all sizes until the time is up.\n\n"
      "  firkin bench chunks --ranks 2                        60 M elements, 16 KiB up\n"
      "  firkin bench chunks --ranks 2 -b 4K -e 64M -f 2 --time 10m\n");
  const Run run = declare_over_sizes(app, flags, "bench-chunks");
  add_value(app, "--elements", flags->elements, "float32 elements of the data")->check(number_from(int64_t{1}, int64_t{1} << 36));
  return run;
}

Run declare_bench_collectives(CLI::App& app) {
  auto flags = std::make_shared<CollectivesFlags>();
  app.footer(
      "The strategy sharded sends each bucket in two halves: a reduce-scatter, and\n"
      "after the optimiser an all-gather, each with about half the bytes of an all-\n"
      "reduce. Times them as the strategy sends them, in turns with the all-reduce, so\n"
      "that drift of the machine meets all three. size: the whole bucket, all ranks'\n"
      "slices together. median: single calls on the slowest rank. ratio: to the all-\n"
      "reduce beside it. #wrong: elements that differ from the exact sum; exit code 1\n"
      "if there are any.\n\n"
      "  firkin bench collectives --ranks 2                 4 KiB to 64 MiB\n"
      "  firkin bench collectives --ranks 2 -b 1M -e 16M -f 2 --time 1m\n"
      "  firkin bench collectives --ranks 4 --link 1gbit    over a modelled link\n");
  return declare_over_sizes(app, flags, "bench-collectives");
}

Run declare_bench_pairs(CLI::App& app) {
  auto flags = std::make_shared<PairsFlags>();
  app.footer(
      "Names the host with the slow link. A collective is as slow as its slowest link\n"
      "for every rank, so its times, and those of a training step, cannot.\n\n"
      "The first rank of each host (all ranks if there is one host) exchanges data with\n"
      "the next two, one pair at a time while the others wait: all pairs of up to five\n"
      "hosts, two for each of more. The data are in CPU memory and travel over Gloo,\n"
      "whose interface GLOO_SOCKET_IFNAME sets; this says nothing of NVLink, or of NCCL\n"
      "over InfiniBand.\n\n"
      "Gbit/s: data each way at once, in the best exchange of the best pair that the\n"
      "rank is in, since the other link of a pair may limit it. slow: below 80 % of the\n"
      "fastest. Two hosts cannot tell which of them is slow; a host all of whose\n"
      "partners are slow looks slow.\n\n"
      "  torchrun --nnodes 4 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \\\n"
      "    --no-python firkin bench pairs\n"
      "  srun --ntasks-per-node 1 firkin bench pairs --time 30s\n"
      "  lab/run --hosts 3 --rate 1gbit,300mbit,1gbit -- firkin bench pairs\n");
  add_run_flags(app, *flags, "bench-pairs");
  for (const char* refused : {"--link", "--world"}) app.get_option(refused)->group("");
  add_bytes(app, "-b,--bytes", flags->bytes, "what each of a pair sends to the other");
  add_budget(app, "--time", flags->seconds, "budget for everything; two rounds at least");
  return [flags] {
    if (flags->ranks.link)
      throw InputError(
          fmt::format("--link {}: expected it left out, because a modelled link is the same for all ranks", *flags->ranks.link));
    return measure(flags.get());
  };
}

Run declare_bench_layers(CLI::App& app) {
  auto flags = std::make_shared<LayersFlags>();
  app.footer(
      "Trains without communication, with a clock in every gradient's hook and after\n"
      "each layer of forward. Medians over steps of the slowest rank.\n\n"
      "backward: from when the previous layer (in backward) had all its gradients\n"
      "until this one has. The first one's therefore includes the loss, and a tied\n"
      "weight is ready only at the end. The total of forward includes reading the\n"
      "batch and the loss. Half of the steps run without clocks, so that the result\n"
      "says what these cost. tensors.csv: when autograd has finished each gradient.\n\n"
      "  firkin bench layers --ranks 1 --model gpt2 --batch 1\n"
      "  firkin bench layers --ranks 2 --out run      then\n"
      "  firkin predict --tensors run/tensors.csv --allreduce run/allreduce.csv\n");
  add_run_flags(app, *flags, "bench-layers");
  add_job_flags(app, flags->job);
  add_value(app, "--steps", flags->steps, "steps with clocks, and as many without")->check(number_from(4, 100000));
  return [flags] {
    check_model(flags->job);
    return measure(flags.get());
  };
}

Run declare_trace(CLI::App& app) {
  auto flags = std::make_shared<TraceFlags>();
  app.footer(std::string(kStrategiesInHelp) +
             "Records a few steps per strategy: operators and collectives, on every rank.\n\n"
             "compute: at least one operator ran. communication: the transport was working on\n"
             "at least one collective. overlapped: both; exposed: communication alone.\n\n"
             "Rank 0, medians over steps. Recording slows the steps; firkin bench step gives\n"
             "undisturbed times. report.html shows the last step of each strategy.\n"
             "trace-STRATEGY.json has every operator of every rank: drop it on\n"
             "https://ui.perfetto.dev (it stays on your machine). firkin import and predict\n"
             "--trace read it back, if the ranks had no GPU.\n\n"
             "  firkin trace --ranks 2 --strategies naive,overlap\n"
             "  firkin trace --ranks 2 --strategies bucketed,torch --cap 1MiB,4MiB\n");
  add_run_flags(app, *flags, "trace");
  add_job_flags(app, flags->job);
  add_replay_flags(app, flags->job);
  add_strategy_flags(app, flags->strategies, flags->caps);
  add_rule_flags(app, flags->rule);
  const char* const measuring = "Measuring";
  add_value(app, "--warmup", flags->warmup_steps, "steps before the recorded ones", measuring)->check(number_from(1, 100000));
  add_value(app, "--steps", flags->steps, "recorded steps")->check(number_from(1, 1000));
  return [flags] {
    check_distinct("--strategies", flags->strategies);
    check_model(flags->job);
    return measure(flags.get());
  };
}

}  // namespace firkin::cli
