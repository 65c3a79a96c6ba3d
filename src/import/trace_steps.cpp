#include "trace_steps.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <numeric>
#include <ranges>
#include <unordered_map>

#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/plan/bucket_plan.h"

namespace firkin {
namespace {

constexpr const char* kRecordShapes = "torch.profiler.profile(record_shapes=True)";

// Bytes of an element; 0 for types that gradients do not have. "float" is how c10 names it, "Float" how NCCL does.
int64_t element_bytes_of(std::string type) {
  std::ranges::transform(type, type.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (type.starts_with("c10::")) type.erase(0, 5);
  if (type == "double" || type == "float64") return 8;
  if (type == "float" || type == "float32") return 4;
  return type == "half" || type == "float16" || type == "bfloat16" ? 2 : 0;
}

int64_t elements_of(const TraceGradient& gradient) {
  return std::accumulate(gradient.dimensions.begin(), gradient.dimensions.end(), int64_t{1}, std::multiplies<>());
}

// A pass of backward, and what follows until the next pass begins.
struct Pass {
  double begin_us = 0, end_us = 0;
  double backward_us = 0;  // when the host begins with it
  std::vector<const TraceGradient*> gradients = {};
  std::vector<TraceCollective*> candidates = {};     // all-reduces launched since backward began
  std::vector<const TraceCollective*> reduces = {};  // those that carry the gradients
};

class Finder {
 public:
  Finder(TraceEvents events, const std::optional<GradientSizes>& sizes) : events_(std::move(events)), sizes_(sizes) {}

  TraceSteps find() {
    if (events_.gradients.empty()) fail("no backward pass", "a trace of training steps, with ProfilerActivity.CPU");
    found_.file = events_.file;
    found_.rank = events_.rank;
    found_.world_size = events_.world_size;
    if (found_.world_size > 0 && found_.rank >= found_.world_size) {
      fail(fmt::format("rank {} of {}", found_.rank, found_.world_size), "a rank below the number of ranks");
    }
    found_.backend = events_.backend;
    found_.on_gpu = std::ranges::any_of(events_.collectives, [](const TraceCollective& c) { return c.on_gpu(); });
    find_passes();
    for (Pass& pass : passes_) find_candidates(pass);
    choose_sizes();
    for (Pass& pass : passes_) {
      if (events_.is_firkins) take_padding_off(pass);
      match(pass);
    }
    keep_common_layout();
    index_gpu();
    for (const Pass* pass : kept_) found_.steps.push_back(step_of(*pass));
    for (size_t i = 0; i + 1 < kept_.size(); ++i) set_length(*kept_[i], found_.steps[i]);
    describe_rest();
    return std::move(found_);
  }

 private:
  [[noreturn]] void fail(const std::string& what, const std::string& expected) const {
    throw InputError(fmt::format("{}: {}; expected {}", events_.file, what, expected));
  }

  // Cuts the trace where forward of DistributedDataParallel begins, or where the profiler or an optimiser begins a step.
  void find_passes() {
    const bool has_steps = events_.steps.size() > 1;
    const std::vector<TraceSpan>& marks = !events_.forwards.empty() ? events_.forwards : has_steps ? events_.steps : events_.optimizers;
    std::vector<double> begins;
    if (&marks == &events_.optimizers) begins.push_back(-std::numeric_limits<double>::infinity());
    for (const TraceSpan& mark : marks) begins.push_back(mark.start_us);
    if (marks.empty()) fail("nothing says where a step begins", "DistributedDataParallel, torch.optim or prof.step()");
    begins.push_back(std::numeric_limits<double>::infinity());
    auto gradient = events_.gradients.begin();
    auto node = events_.nodes.begin();
    for (size_t i = 0; i + 1 < begins.size(); ++i) {
      Pass pass{.begin_us = begins[i], .end_us = begins[i + 1]};
      while (gradient != events_.gradients.end() && gradient->start_us < pass.begin_us) ++gradient;
      for (; gradient != events_.gradients.end() && gradient->start_us < pass.end_us; ++gradient) pass.gradients.push_back(&*gradient);
      while (node != events_.nodes.end() && node->start_us < pass.begin_us) ++node;
      if (pass.gradients.empty()) continue;
      pass.backward_us = pass.gradients.front()->start_us;
      if (node != events_.nodes.end()) pass.backward_us = std::min(pass.backward_us, node->start_us);
      if (!std::isfinite(pass.begin_us)) {  // before the first step of the optimiser
        pass.begin_us = events_.operators.empty() ? pass.backward_us : std::min(pass.backward_us, events_.operators.front().start_us);
      }
      passes_.push_back(std::move(pass));
    }
    if (passes_.empty()) fail("no backward pass in a whole step", "a trace of several steps");
  }

  void find_candidates(Pass& pass) {
    for (TraceCollective& collective : events_.collectives) {
      const bool is_of_pass = collective.launched_us >= pass.backward_us && collective.launched_us < pass.end_us;
      if (is_of_pass && collective.name == "all_reduce") pass.candidates.push_back(&collective);
    }
  }

  // The type of the largest all-reduce; smaller ones may carry something else: a loss, a count.
  static const std::string& type_of_largest(const Pass& pass) {
    return (*std::ranges::max_element(pass.candidates, {}, &TraceCollective::elements))->type;
  }

  bool uses_given() const { return !given_.empty(); }

  bool has_candidates() const {
    return std::ranges::any_of(passes_, [](const Pass& pass) { return !pass.candidates.empty(); });
  }

  // The gradients' sizes: from shapes if they were recorded, else from what was given.
  void choose_sizes() {
    if (!has_candidates())
      fail("no all-reduce during or after backward", "a data-parallel run on several ranks, under DistributedDataParallel");
    const bool has_shapes = std::ranges::none_of(events_.gradients, [](const TraceGradient& g) { return g.type.empty(); });
    if (has_shapes) {
      if (sizes_) compare_with_shapes();
      return;
    }
    const auto is_unknown = [](const TraceCollective* reduce) { return reduce->elements < 0; };
    for (const Pass& pass : passes_) {
      if (std::ranges::any_of(pass.candidates, is_unknown))
        fail("the sizes of neither gradients nor all-reduces were recorded", kRecordShapes);
    }
    if (!sizes_) {
      fail("the sizes of gradients were not recorded", fmt::format("{}, or --model or --tensors, which say them", kRecordShapes));
    }
    const int64_t first = std::ssize(passes_.back().gradients), count = std::ssize(sizes_->sizes);
    if (first != count) fail(fmt::format("{} gradients a pass", first), fmt::format("the {} of {}", count, sizes_->source));
    given_ = given_elements();
  }

  std::vector<int64_t> given_elements() const {
    std::vector<int64_t> elements = sizes_->sizes;
    if (!sizes_->are_bytes) return elements;
    const auto with_candidates = std::ranges::find_if(passes_, [](const Pass& pass) { return !pass.candidates.empty(); });
    const int64_t bytes = std::max<int64_t>(1, element_bytes_of(type_of_largest(*with_candidates)));
    for (int64_t& size : elements) size /= bytes;
    return elements;
  }

  // Sizes that are given although the trace has them must be its own.
  void compare_with_shapes() const {
    std::vector<int64_t> given = given_elements(), recorded;
    for (const TraceGradient* gradient : passes_.back().gradients) recorded.push_back(elements_of(*gradient));
    std::ranges::sort(given);
    std::ranges::sort(recorded);
    if (given != recorded)
      fail(fmt::format("recorded shapes are not those of {}", sizes_->source), "the model of this run, or only the trace");
  }

  int64_t gradient_elements(const Pass& pass) const {
    int64_t total = 0;
    if (uses_given()) return std::accumulate(given_.begin(), given_.end(), total);
    for (const TraceGradient* gradient : pass.gradients) total += elements_of(*gradient);
    return total;
  }

  // Takes the gaps between the gradients in Firkin's buckets off the buckets' sizes.
  void take_padding_off(Pass& pass) {
    size_t next = 0;
    for (TraceCollective* reduce : pass.candidates) {
      const int64_t bytes = element_bytes_of(reduce->type);
      if (bytes == 0) continue;
      const int64_t alignment = kGradientAlignment / bytes;
      int64_t sum = 0, place = 0;
      for (size_t behind = next; behind < pass.gradients.size() && place < reduce->elements;) {
        const int64_t elements = uses_given() ? given_[behind] : elements_of(*pass.gradients[behind]);
        place = (place + alignment - 1) / alignment * alignment + elements;
        sum += elements;
        ++behind;
        if (place == reduce->elements || sum == reduce->elements) {
          reduce->elements = sum;
          next = behind;
          break;
        }
      }
    }
  }

  // Chooses the all-reduces that carry the pass's gradients: neighbours with as many elements together. Others, such as
  // that of a loss, stay out.
  void match(Pass& pass) {
    if (pass.candidates.empty()) return;  // under no_sync()
    const std::string type = uses_given() ? type_of_largest(pass) : pass.gradients.front()->type;
    const int64_t bytes = element_bytes_of(type);
    if (bytes == 0) fail(fmt::format("gradients of type {}", type), "floating-point numbers of 2 to 8 bytes");
    for (const TraceGradient* gradient : pass.gradients) {
      if (uses_given() || gradient->type == type) continue;
      fail(fmt::format("gradients of two types, {} and {}, for which PyTorch keeps buckets apart", type, gradient->type), "one type");
    }
    const int64_t wanted = gradient_elements(pass);
    constexpr int64_t kMost = int64_t{1} << 50;  // eight bytes each are still whole numbers to a double
    if (wanted < 1 || wanted > kMost) fail(fmt::format("gradients of {} elements in all", wanted), "1 to 2^50");
    const std::vector<TraceCollective*>& all = pass.candidates;
    int64_t sum = 0;
    for (size_t first = 0, behind = 0; first < all.size();) {
      while (behind < all.size() && sum < wanted && all[behind]->elements >= 0) sum += all[behind++]->elements;
      if (sum == wanted) {
        pass.reduces.assign(all.begin() + static_cast<std::ptrdiff_t>(first), all.begin() + static_cast<std::ptrdiff_t>(behind));
        break;
      }
      if (behind == first)
        ++behind;  // a size that is not known
      else
        sum -= all[first]->elements;
      ++first;
    }
    for (const TraceCollective* reduce : pass.reduces) {
      if (element_bytes_of(reduce->type) == bytes) continue;
      fail(fmt::format("gradients of type {} travel as {}, as with a communication hook", type, reduce->type),
           "all-reduces of gradients as they are");
    }
    if (pass.reduces.empty()) {
      mismatch_ = fmt::format("the gradients of a step have {} elements, its all-reduces {}", wanted,
                              fmt::join(all | std::views::take(8) | std::views::transform([](auto c) { return c->elements; }), ", "));
    } else {
      found_.element_bytes = bytes;
    }
  }

  // What two steps must have in common so that one can stand for the other.
  std::vector<int64_t> layout(const Pass& pass) const {
    std::vector<int64_t> sizes;
    for (const TraceGradient* gradient : pass.gradients) sizes.push_back(uses_given() ? 0 : elements_of(*gradient));
    sizes.push_back(-1);
    for (const TraceCollective* reduce : pass.reduces) sizes.push_back(reduce->elements);
    return sizes;
  }

  // Keeps the passes of the most common layout, whose steps can stand for each other.
  void keep_common_layout() {
    std::map<std::vector<int64_t>, std::vector<const Pass*>> passes_of;
    int64_t all = 0;
    for (const Pass& pass : passes_) {
      if (pass.reduces.empty()) continue;
      passes_of[layout(pass)].push_back(&pass);
      ++all;
    }
    if (passes_of.empty()) {
      fail(mismatch_,
           "all-reduces that carry every gradient once, as DistributedDataParallel's do: no unused parameters, sparse gradients, or "
           "gradients of inputs or of modules outside");
    }
    kept_ = std::ranges::max_element(passes_of, {}, [](const auto& one) { return one.second.size(); })->second;
    const int64_t own = gradient_elements(*kept_.front());
    for (const auto& [sizes, passes] : passes_of) {
      const int64_t others = gradient_elements(*passes.front());
      if (passes.size() > 1 && others != own) {
        fail(fmt::format("steps with gradients of {} elements, and others with {}", own, others),
             "one wrapped model, which is trained in every step");
      }
    }
    if (kept_.size() < 2) {
      fail(all == 1 ? "one step" : fmt::format("{} steps with different gradients or buckets", all),
           "at least two steps alike, after a few of warm-up");
    }
    found_.odd_steps = all - std::ssize(kept_) + match_others_with(kept_.front()->reduces);
    const Pass& pass = *kept_.front();
    for (size_t i = 0; i < pass.gradients.size(); ++i) {
      const TraceGradient& gradient = *pass.gradients[i];
      found_.elements.push_back(uses_given() ? given_[i] : elements_of(gradient));
      found_.names.push_back(uses_given() ? sizes_->names[i] : fmt::format("gradient {} ({})", i, fmt::join(gradient.dimensions, "x")));
    }
    if (uses_given()) confirm_given(pass);
  }

  // Of the passes without all-reduces of their gradients: those with all-reduces of the same sizes as `buckets`. Some
  // parameters got no gradient there. Returns how many.
  int64_t match_others_with(const std::vector<const TraceCollective*>& buckets) {
    int64_t found = 0;
    for (Pass& pass : passes_) {
      if (!pass.reduces.empty()) continue;
      const auto match = std::ranges::search(pass.candidates, buckets, {}, &TraceCollective::elements, &TraceCollective::elements);
      pass.reduces.assign(match.begin(), match.end());
      found += match.empty() ? 0 : 1;
    }
    return found;
  }

  // Every bucket must hold whole gradients, in the order given.
  void confirm_given(const Pass& pass) const {
    size_t next = 0;
    for (const TraceCollective* reduce : pass.reduces) {
      int64_t sum = 0;
      while (next < found_.elements.size() && sum < reduce->elements) sum += found_.elements[next++];
      if (sum == reduce->elements) continue;
      fail(fmt::format("all-reduces of {} elements, which do not end where gradients of {} do",
                       fmt::join(pass.reduces | std::views::transform([](auto c) { return c->elements; }), ", "), sizes_->source),
           fmt::format("the model of this run, or {}", kRecordShapes));
    }
  }

  // When the GPU's work that each call of the host launched began and ended.
  void index_gpu() {
    if (!found_.on_gpu) return;
    for (const TraceKernel& kernel : events_.kernels) {
      const auto [place, is_new] = work_.try_emplace(kernel.correlation, kernel);
      if (is_new) continue;
      place->second.start_us = std::min(place->second.start_us, kernel.start_us);
      place->second.end_us = std::max(place->second.end_us, kernel.end_us);
    }
    std::erase_if(events_.launches, [&](const TraceLaunch& launch) { return !work_.contains(launch.correlation); });
  }

  TraceStep step_of(const Pass& pass) const {
    TraceStep step;
    step.begin_us = pass.begin_us;
    step.backward_us = pass.backward_us;
    std::vector<double> ready_us;
    for (const TraceGradient* gradient : pass.gradients) ready_us.push_back(gradient->start_us);
    if (found_.on_gpu) step.backward_us = find_on_gpu(pass, ready_us);
    double latest = 0;
    for (size_t i = 0; i < ready_us.size(); ++i) {
      latest = std::max(latest, (ready_us[i] - step.backward_us) / kSecond_us);
      step.gradients.push_back({latest, (pass.gradients[i]->start_us - step.backward_us) / kSecond_us});
    }
    constexpr double kLongest_s = 1e6;
    if (latest > kLongest_s) fail(fmt::format("a backward pass of {}", format_seconds(latest)), "times in microseconds");
    const auto since = [&](double at_us) { return (at_us - step.backward_us) / kSecond_us; };
    for (const TraceCollective* reduce : pass.reduces) {
      StepReduce& one = step.reduces.emplace_back();
      one = {since(reduce->launched_us), since(reduce->start_us), since(reduce->end_us), reduce->elements, reduce->stream};
      for (const TraceCollective& other : events_.collectives) {
        if (&other != reduce && other.start_us < reduce->end_us && other.end_us > reduce->start_us) one.is_alone = false;
      }
    }
    return step;
  }

  // Sets when each gradient was ready on the GPU, and returns when the first kernel of backward began.
  double find_on_gpu(const Pass& pass, std::vector<double>& ready_us) const {
    const int64_t thread = pass.gradients.front()->thread;
    auto launch = std::ranges::lower_bound(events_.launches, pass.backward_us, {}, &TraceLaunch::start_us);
    double begin_us = 0, end_us = 0;
    bool has_begun = false;
    for (size_t i = 0; i < ready_us.size(); ++i) {
      for (; launch != events_.launches.end() && launch->start_us < pass.gradients[i]->start_us; ++launch) {
        if (launch->thread != thread) continue;
        const TraceKernel& kernel = work_.at(launch->correlation);
        if (!std::exchange(has_begun, true)) begin_us = end_us = kernel.start_us;
        end_us = kernel.end_us;
      }
      ready_us[i] = end_us;
    }
    if (!has_begun) fail("no kernel that backward launched", "ProfilerActivity.CUDA beside ProfilerActivity.CPU");
    for (double& ready : ready_us) ready = std::max(ready, begin_us);
    return begin_us;
  }

  // Sets the time from the forward of this step to that of the next. With gradient accumulation, passes without all-reduces
  // lie between.
  void set_length(const Pass& pass, TraceStep& step) const {
    for (const Pass& later : passes_) {
      if (later.begin_us <= pass.begin_us || later.reduces.empty()) continue;
      step.step_s = (later.begin_us - pass.begin_us) / kSecond_us;
      return;
    }
  }

  void describe_rest() {
    std::vector<const TraceCollective*> of_gradients;
    for (const Pass& pass : passes_) of_gradients.insert(of_gradients.end(), pass.reduces.begin(), pass.reduces.end());
    std::ranges::sort(of_gradients);
    for (const TraceCollective& collective : events_.collectives) {
      if (found_.world_size == 0) found_.world_size = collective.group_size;
      if (!std::ranges::binary_search(of_gradients, &collective)) ++found_.others[{collective.name, collective.group}];
    }
    if (found_.on_gpu) {
      std::map<int64_t, int64_t> kernels_of;
      for (const TraceKernel& kernel : events_.kernels) ++kernels_of[kernel.stream];
      const int64_t computing = std::ranges::max_element(kernels_of, {}, [](const auto& one) { return one.second; })->first;
      const auto& reduces = found_.steps.front().reduces;
      found_.reduces_on_computing_stream = std::ranges::all_of(reduces, [&](const StepReduce& one) { return one.stream == computing; });
      for (const TraceKernel& kernel : events_.kernels) found_.computing.push_back(kernel);
    } else {
      found_.computing = std::move(events_.operators);
    }
    found_.has_date = events_.base_us > 0;
    found_.begin_us = events_.base_us + kept_.front()->begin_us;
    found_.end_us = events_.base_us + kept_.back()->gradients.back()->end_us;
  }

  TraceEvents events_;
  const std::optional<GradientSizes>& sizes_;
  std::vector<int64_t> given_;  // elements of the gradients; empty: shapes were recorded
  std::vector<Pass> passes_;
  std::vector<const Pass*> kept_;
  std::string mismatch_;
  std::unordered_map<int64_t, TraceKernel> work_;  // by correlation
  TraceSteps found_;
};

}  // namespace

TraceSteps find_trace_steps(TraceEvents events, const std::optional<GradientSizes>& sizes) {
  return Finder(std::move(events), sizes).find();
}

}  // namespace firkin
